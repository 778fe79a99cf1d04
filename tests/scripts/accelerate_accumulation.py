"""Accelerate with gradient accumulation, as in its documentation."""

import json
import sys
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    batch, passes = int(sys.argv[1]), 4
    accelerator = Accelerator(gradient_accumulation_steps=passes, cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = 40 * batch * passes * accelerator.num_processes
    data = TensorDataset(torch.randn(samples, 64), torch.zeros(samples, dtype=torch.long))
    loader = DataLoader(data, batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    ends = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ends.append(time.perf_counter())
    print("TIMER", json.dumps(ends))


if __name__ == "__main__":
    main()
