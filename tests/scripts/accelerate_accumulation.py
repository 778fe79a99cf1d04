"""Accelerate with gradient accumulation, as in its documentation."""

import os
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
    began, steps = time.perf_counter(), 0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps += 1
            if steps == 10:
                began = time.perf_counter()
    print("TIMER", os.environ["RANK"], steps, (time.perf_counter() - began) / (steps - 10))


if __name__ == "__main__":
    main()
