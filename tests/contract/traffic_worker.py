"""What test_traffic.py asks of two ranks: the bytes that a step's collectives move."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raysuite.parallel import make_strategy
from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records.run_costs import step_traffic
from raysuite.spec import Document
from raysuite.train.cost_meter import run_costs
from raysuite.train.loop import TrainingLoop
from raysuite.train.world import world_from_environment
from tests.contract.launches import write

FLAG_BYTES = 8
"""Up to here a collective carries a norm or a flag."""


class Wide(nn.Sequential):
    """Layers above and below the size up to which ZeRO-3 keeps weights whole."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        sizes = [64 * in_channels, 500, 400, num_classes]
        super().__init__(nn.Flatten(), *(nn.Linear(*pair) for pair in itertools.pairwise(sizes)))


class Collectives(TorchDispatchMode):
    """torch.distributed's collectives, and the bytes of the whole buffers that they combine."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            # a gather's result and a scatter's input are the whole, and the larger of the two
            size = max(each.nbytes for each in tree_leaves(args) if isinstance(each, Tensor))
            if size > FLAG_BYTES:
                name = func.name().removeprefix("c10d::").strip("_")
                self.bytes[name] += size
                self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def horovod_sees(found: Counter[str]) -> Iterator[None]:
    """Counts what Horovod's optimiser gives to its own all-reduce, which torch does not see."""
    from horovod.torch import optimizer

    send = optimizer.allreduce_async_

    def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        found["allreduce"] += tensor.nbytes
        return send(tensor, *args, **kwargs)

    with patch.object(optimizer, "allreduce_async_", counting):
        yield


def plan_of(strategy: dict[str, Any], accumulate: int) -> RunPlan:
    document = {
        "name": "traffic",
        "model": {"name": "tests.contract.traffic_worker:Wide"},
        "data": "digits",
        "strategy": strategy,
        "training": {"epochs": 1, "global_batch": 32, "accumulate": accumulate},
        "resources": {"workers": 2, "device": "cpu"},
    }
    return make_plans(Document(document, "test"), gpus=0)[0]


def examine(strategy: dict[str, Any], accumulate: int, world: World) -> dict[str, Any]:
    """The collectives of one step, after two others, and what is computed of them."""
    plan = plan_of(strategy, accumulate)
    framework = make_strategy(plan.spec.strategy)
    framework.start(world)
    loop = TrainingLoop(plan, world, framework)
    try:
        costs = run_costs(plan, world, loop.engine.comm)
        steps, _ = loop.slices(0)
        batches = loop.train_loader.batches([part for step in steps[:3] for part in step])
        loop.engine.model.train()
        for _ in range(2):
            loop.train_step([next(batches) for _ in range(accumulate)], 0.1)
        micro_batches = [next(batches) for _ in range(accumulate)]
        with Collectives() as seen:
            if strategy["name"] == "horovod":
                with horovod_sees(seen.bytes):
                    loop.train_step(micro_batches, 0.1)
            else:
                loop.train_step(micro_batches, 0.1)
    finally:
        loop.close()
        framework.stop()
    plain = plan.model_dump(mode="json")
    sizes = costs.parameters or 0, costs.gradient_bytes or 0, costs.small_parameters
    traffic = step_traffic(plain, *sizes)
    return {"seen": seen.bytes, "computed": vars(traffic) if traffic else None}


def main(requests: list[list[Any]], file: Path) -> None:
    torch.manual_seed(0)
    world = world_from_environment("cpu")
    found = [examine(strategy, accumulate, world) for strategy, accumulate in requests]
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
