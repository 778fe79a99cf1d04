"""Horovod's DistributedOptimizer, as in its examples."""

import json
import sys
import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    batch = int(sys.argv[1])
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    samples = 40 * batch * hvd.size()
    data = TensorDataset(torch.randn(samples, 64), torch.zeros(samples, dtype=torch.long))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    ends = []
    for x, y in DataLoader(data, batch, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    print("TIMER", json.dumps(ends))


if __name__ == "__main__":
    main()
