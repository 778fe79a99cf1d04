"""What test_gate.py asks of two ranks: the verdict on each flaw, and what the cache keeps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from raysuite.gate.small_network import compare
from raysuite.gate.strategy_check import check, examine
from raysuite.parallel import ddp, make_strategy
from raysuite.parallel.base import StepSettings, World
from raysuite.plan import make_plans
from raysuite.records import GateVerdict
from raysuite.spec import Document
from raysuite.spec.strategies import CustomOptions, DdpOptions
from raysuite.train.world import world_from_environment
from tests.strategies.broken import Broken

TARGET = "tests.strategies.broken:Broken"
CHECKED = ("no_sync", "sum", "comm_of_one")
"""Flaws; tests/unit/gate/test_strategy_check.py has all of them, on ranks that are threads."""
FACTS: dict[str, Any] = {"cpu": {"model": "abacus"}, "versions": {"torch": "1"}}


def main(file: Path) -> None:
    world = world_from_environment("cpu")
    strategy = Broken()
    strategy.start(world)
    found: dict[str, Any] = {}
    for flaw in ("none", *CHECKED):
        found[flaw] = told(verdict(flaw, world), world)
    found["buckets"] = first_bucket_alone(world)
    found["cache"] = cache(world)
    strategy.stop()
    (file.parent / f"{file.name}.{world.rank}").write_text(json.dumps(found))


def verdict(flaw: str, world: World) -> GateVerdict:
    options = CustomOptions(target=TARGET, options={"flaw": flaw})
    return examine(options, world, started(flaw, world), StepSettings(1, 2, 0.5))


def first_bucket_alone(world: World) -> dict[str, Any]:
    """The verdicts on DDP that reduces a step's first bucket alone, and how many it was given."""
    options = DdpOptions()
    strategy = make_strategy(options)
    strategy.start(world)
    indices: set[int] = set()

    def hook(_: object, bucket: Any) -> torch.futures.Future[Tensor]:
        indices.add(bucket.index())
        if bucket.index() == 0:
            return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]
        result: torch.futures.Future[Tensor] = torch.futures.Future()
        result.set_result(bucket.buffer())
        return result

    def register(model: DistributedDataParallel, _: DdpOptions) -> None:
        hook.__annotations__ = {}  # torch compares them with classes
        model.register_comm_hook(None, hook)

    with mock.patch.object(ddp, "_register_compression", register):
        one = compare(strategy, world, StepSettings(1, 2))
        buckets = len(indices)
        refused = examine(options, world, strategy, StepSettings(1, 2))
    return {
        "error of one": one.error,
        "buckets of one": buckets,
        "buckets": len(indices),
        **told(refused, world),
    }


def told(verdict: GateVerdict, world: World) -> dict[str, Any]:
    assert verdict.workers == world.size
    return {"passed": verdict.passed, "message": verdict.message, "error": repr(verdict.error)}


def cache(world: World) -> dict[str, Any]:
    """Answers of `check`: first, again, for a failing strategy, and for a custom one."""
    ddp = plan_of({"name": "ddp"})
    custom = plan_of({"name": "custom", "target": TARGET})
    answers = {
        "first": check(ddp, world, started("none", world), FACTS),
        "again": check(ddp, world, started("none", world), FACTS),
        "custom": check(custom, world, started("none", world), FACTS),
        "custom again": check(custom, world, started("no_sync", world), FACTS),
        # the options of another plan, so that nothing is known of them
        "failing": check(plan_of({"bucket_mb": 2.0}), world, started("sum", world), FACTS),
        "failing again": check(plan_of({"bucket_mb": 2.0}), world, started("none", world), FACTS),
    }
    return {name: [each.passed, each.cached, each.error_network] for name, each in answers.items()}


def started(flaw: str, world: World) -> Broken:
    strategy = Broken(flaw)
    strategy.start(world)
    return strategy


def plan_of(strategy: dict[str, Any]) -> Any:
    data = {
        "name": "gate",
        "model": "resnet20",
        "data": "digits",
        "strategy": {"name": "ddp", **strategy},
        "training": {"epochs": 1, "global_batch": 8},
        "resources": {"workers": 2, "device": "cpu"},
    }
    return make_plans(Document(data, "test"))[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
