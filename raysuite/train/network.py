"""The worker of `raysuite bench network`: times collectives, started by torchrun.

python -m torch.distributed.run --nproc-per-node 2 -m raysuite.train.network FILE REQUEST

REQUEST is JSON: {"device": "cpu", "bytes": [...], "workers": [...], "repeats": 10}. Rank 0 appends
a line of JSON to FILE for each: {"collective", "workers", "bytes", "seconds": [repeats]}. A time is
that of the slowest rank, from a barrier on, device-synchronised.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raysuite.measure.clock import now
from raysuite.parallel.comm import join_torch_group, leave_torch_group
from raysuite.train.world import world_from_environment

_WARM_UP = 3


def main(file: Path, request: dict[str, Any]) -> None:
    """Time each collective for each number of workers and bytes."""
    torch.set_num_threads(1)
    world = world_from_environment(request["device"])
    join_torch_group(world.rank, world.size, world.device)
    groups = {count: dist.new_group(range(count)) for count in request["workers"]}
    for count, group in groups.items():
        for size in request["bytes"] if world.rank < count else ():
            value = torch.ones(max(1, size // 4), device=world.device)
            for name, call in _calls(value, world.rank, count, group).items():
                seconds = [
                    _slowest(call, world.device, group)
                    for _ in range(_WARM_UP + request["repeats"])
                ][_WARM_UP:]
                if world.rank == 0:
                    line = {"collective": name, "workers": count, "bytes": value.nbytes}
                    with file.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps({**line, "seconds": seconds}) + "\n")
    dist.barrier()
    leave_torch_group()


def _calls(value: Tensor, rank: int, count: int, group: Any) -> dict[str, Callable[[], object]]:
    part = value[: max(1, len(value) // count)]
    parts = [torch.empty_like(part) for _ in range(count)]

    def to_and_fro() -> None:
        if rank == 0:
            dist.send(value, 1, group)
            dist.recv(value, 1, group)
        elif rank == 1:
            dist.recv(value, 0, group)
            dist.send(value, 0, group)

    return {
        "all_reduce": lambda: dist.all_reduce(value, group=group),
        "all_gather": lambda: dist.all_gather(parts, part, group=group),
        "broadcast": lambda: dist.broadcast(value, 0, group),
        "send": to_and_fro,
    }


def _slowest(call: Callable[[], object], device: torch.device, group: Any) -> float:
    dist.barrier(group)
    began = now(device)
    call()
    seconds = torch.tensor(now(device) - began, dtype=torch.float64, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group)
    return float(seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
