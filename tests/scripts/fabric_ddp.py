"""Lightning Fabric under torchrun."""

import json
import os
import sys
import time

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    batch, ranks = int(sys.argv[1]), int(os.environ["WORLD_SIZE"])
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    samples = 40 * batch * ranks
    data = TensorDataset(torch.randn(samples, 64), torch.zeros(samples, dtype=torch.long))
    loader = fabric.setup_dataloaders(DataLoader(data, batch, shuffle=True))
    ends = []
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        ends.append(time.perf_counter())
    print("TIMER", json.dumps(ends))


if __name__ == "__main__":
    main()
