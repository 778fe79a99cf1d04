"""FSDP2: fully_shard on each block, a DataLoader with workers' own shards."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.head = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


def main() -> None:
    batch = int(sys.argv[1])
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(40 * batch, 64), torch.zeros(40 * batch, dtype=torch.long))
    sampler = DistributedSampler(data)
    ends = []
    for epoch in range(dist.get_world_size()):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch, sampler=sampler):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ends.append(time.perf_counter())
    print("TIMER", json.dumps(ends))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
