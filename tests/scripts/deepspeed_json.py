"""DeepSpeed with its JSON configuration, and two groups of parameters."""

import argparse
import json
import os
import time

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--config", type=json.loads)
    args = parser.parse_args()
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 512), nn.Linear(512, 2))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=args.config
    )
    batch = engine.train_micro_batch_size_per_gpu()
    passes = engine.gradient_accumulation_steps()
    ranks = int(os.environ["WORLD_SIZE"])
    samples = 40 * batch * passes * ranks
    data = TensorDataset(torch.randn(samples, 64), torch.zeros(samples, dtype=torch.long))
    loader = DataLoader(data, batch, sampler=DistributedSampler(data))
    ends = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        if engine.global_steps > len(ends):
            ends.append(time.perf_counter())
    print("TIMER", json.dumps(ends))


if __name__ == "__main__":
    main()
