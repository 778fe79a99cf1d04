"""Plain DistributedDataParallel, as in tutorials: a sampler, an evaluation, a checkpoint."""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(samples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 64, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--save", default="")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, 2))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = make_data(args.samples, 1)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    val_loader = DataLoader(make_data(256, 2), batch_size=args.batch)

    ends = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            ends.append(time.perf_counter())
        accuracy = evaluate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
            if args.save:
                torch.save(model.state_dict(), args.save)
    print("TIMER", json.dumps(ends))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
