"""What test_stopping.py asks of the ranks of one world: a run left alone, and one in two parts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raysuite.parallel import make_strategy
from raysuite.parallel.base import Strategy, World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished
from raysuite.spec import Document
from raysuite.spec.strategies import STRATEGY_OPTIONS
from raysuite.train import stop_together
from raysuite.train.loop import TrainingLoop
from raysuite.train.stop_together import Stop, Watch, never
from raysuite.train.world import world_from_environment
from tests.contract.launches import write

STOP_AFTER = 4
"""Steps, of six an epoch."""
SAVED = ("engine*.pt", "rank-*.pt", "average.pt", "engine/*model_states.pt", "engine/*optim*.pt")
"""Whatever a strategy writes, and torch reads."""


class Malicious:
    """Makes a file where it is loaded by an unwary reader."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def plan_of(strategy: dict[str, Any], workers: int) -> RunPlan:
    options = STRATEGY_OPTIONS[strategy["name"]]
    averaged = strategy.get("zero_stage") != 3 and "training.ema_decay" not in options.only
    network = "sequential" if strategy["name"] == "pipeline" else "Tiny"
    data = {
        "name": "stopping",
        "model": {
            "name": f"tests.tiny_model:{network}",
            "options": {"batch_norm": True, "dropout": 0.2},
        },
        "data": {"name": "digits"},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "strategy": strategy,
        "training": {
            "epochs": 1,
            "global_batch": 240,
            "accumulate": 2,
            **({"ema_decay": 0.8} if averaged else {}),
        },
        "resources": {"device": "cpu", "workers": workers},
    }
    return make_plans(Document(data, "test"), gpus=0)[0]


def trained(loop: TrainingLoop, asked: stop_together.RequestedEnd) -> EpochFinished | Stop:
    watch = Watch(asked, loop.world, loop.engine.comm)
    found = loop.run_epoch(watch)
    watch.end()
    return found


def outcome(loop: TrainingLoop, epoch: EpochFinished | Stop) -> dict[str, Any]:
    assert isinstance(epoch, EpochFinished)
    weights = [loop.engine.weights(), *([loop.average.weights()] if loop.average else [])]
    return {
        "losses": torch.tensor(epoch.losses),
        "validation": torch.tensor([epoch.val_loss, epoch.val_accuracy]),
        "weights": torch.cat([t.flatten() for each in weights for t in each.values()]),
    }


def distances(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    return {
        name: ((found[name] - each).norm() / each.norm()).item() for name, each in expected.items()
    }


def refused(plan: RunPlan, world: World, strategy: Strategy, good: Path) -> dict[str, str]:
    """By what is saved: how the loading of a malicious file in its place failed, on this rank."""
    found = {}
    loop = TrainingLoop(plan, world, strategy)
    for number, pattern in enumerate(SAVED):
        if not list(good.glob(pattern)):
            continue
        folder = good.with_name(f"{good.name}-{number}-{world.rank}")
        shutil.copytree(good, folder)
        mark = folder / "executed"
        for file in folder.glob(pattern):
            torch.save({"model": Malicious(mark), "draws": {}, "buffers": {}}, file)
        try:
            loop.load(folder)
        except Exception as error:
            found[pattern] = "executed" if mark.exists() else type(error).__name__
        else:
            found[pattern] = "loaded"
    loop.close()
    return found


def examine(strategy: dict[str, Any], world: World, folder: Path) -> dict[str, Any]:
    plan = plan_of(strategy, world.size)
    joined = make_strategy(plan.spec.strategy)
    joined.start(world)
    through = TrainingLoop(plan, world, joined)
    expected = outcome(through, trained(through, never))
    through.close()

    asked = iter([*[None] * (STOP_AFTER - 2), Stop("preempted", 7.0)])
    first = TrainingLoop(plan, world, joined)
    stop = trained(first, lambda: next(asked))
    folder.mkdir(parents=True, exist_ok=True)
    first.save(folder)
    steps = first.step
    first.close()
    first.engine.comm.all_reduce(torch.zeros(1), "sum")  # all have written

    second = TrainingLoop(plan, world, joined)
    second.load(folder)
    epoch = trained(second, never)
    again = outcome(second, epoch)
    second.close()
    assert isinstance(epoch, EpochFinished)
    found = {
        "stop": [stop.reason, stop.deadline, steps] if isinstance(stop, Stop) else None,
        "distances": distances(again, expected),
        "attempts": epoch.attempts,
        "waits": len(epoch.data_wait_seconds),
        "refused": refused(plan, world, joined, folder),
    }
    joined.stop()
    return found


def main(request: dict[str, Any], file: Path) -> None:
    stop_together.MEET_SECONDS = 0.0  # at every step
    world = world_from_environment("cpu")
    found = {
        name: examine(options, world, file.parent / f"{file.name}-{name}")
        for name, options in request.items()
    }
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
