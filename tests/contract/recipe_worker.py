"""What test_recipes.py asks of two ranks: optimisers and averages in the real training loop."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from raysuite.gate.small_network import compare, same_on_all_ranks
from raysuite.parallel import make_strategy
from raysuite.parallel.base import StepSettings, Strategy, World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished
from raysuite.spec import Document
from raysuite.spec.optimizers import LambOptions, LarsOptions
from raysuite.spec.strategies import DeepSpeedOptions
from raysuite.train.loop import TrainingLoop
from raysuite.train.stop_together import Watch, never
from raysuite.train.world import world_from_environment
from tests.contract.launches import write

FACTOR = 3.0
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05, "weight_decay": 0.01},
    "lars": {"lr": 0.5, "trust_coefficient": 0.02},
    "lamb": {"lr": 0.02, "eps": 1e-4},
    "adamw": {"lr": 0.002, "eps": 1e-4},
    "muon": {"lr": 0.01},
    "schedule_free": {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.01},
    "weighted": {"name": "sgd", "lr": 0.05},
    "tuned": {"name": "sgd", "lr": 0.02, "lr_factors": {"layers.5.*": FACTOR}},
}
WEIGHTS = [0.5 + label / 10 for label in range(10)]
"""Of the classes, with the optimiser `weighted`."""
FROZEN = ("layers.0.weight",)
"""Of the optimiser `tuned`."""


def plan_of(
    strategy: dict[str, Any], optimizer: str, workers: int, averaged: bool = True
) -> RunPlan:
    spares = {"decay_bias_and_norm": False, "lr_reference_batch": 240, "lr_scaling": "sqrt"}
    training: dict[str, Any] = {"class_weights": WEIGHTS, "sampler": "balanced"}
    if optimizer != "weighted":
        training = {}
    data = {
        "name": "recipe",
        "model": {
            "name": f"tests.tiny_model:{'sequential' if optimizer == 'weighted' else 'Tiny'}",
            "freeze": FROZEN if optimizer == "tuned" else (),
        },
        "data": "digits",
        "strategy": strategy,
        "optimizer": {"name": optimizer, **spares, **OPTIMIZERS[optimizer]},
        "schedule": {"name": "polynomial", "warmup_epochs": 0.5},
        "training": {
            "epochs": 2,
            "global_batch": 240,
            "ema_decay": 0.9 if averaged else None,
            **training,
        },
        "resources": {"workers": workers, "device": "cpu"},
    }
    return make_plans(Document(data, "test"), gpus=0)[0]


@contextmanager
def rates_used() -> Iterator[list[float]]:
    """The rates that optimisers have at their steps; what comes several times on end, once.

    Horovod's step calls that of the optimiser it wraps, and ZeRO's stage 3 takes one a group.
    """
    found: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            if group["lr"] not in found[-1:]:
                found.append(group["lr"])

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def weights_of(loop: TrainingLoop) -> dict[str, Tensor]:
    """The weights, and their average where there is one."""
    found = loop.engine.weights()
    if loop.average is not None:
        average = loop.average.weights()
        found |= {f"average {name}": value for name, value in average.items()}
    return found


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max(
        ((found[name] - tensor).norm() / tensor.norm()).item() for name, tensor in expected.items()
    )


def started(plan: RunPlan, world: World) -> tuple[Strategy, TrainingLoop]:
    strategy = make_strategy(plan.spec.strategy)
    strategy.start(world)
    loop = TrainingLoop(plan, world, strategy)
    loop.read_labels()
    return strategy, loop


def epoch_of(loop: TrainingLoop) -> EpochFinished:
    watch = Watch(never, loop.world, loop.engine.comm)
    epoch = loop.run_epoch(watch)
    watch.end()
    assert isinstance(epoch, EpochFinished)
    return epoch


def alone(optimizer: str, averaged: bool) -> tuple[dict[str, Tensor], list[EpochFinished]]:
    world = World(0, 1, 0, torch.device("cpu"))
    _, loop = started(plan_of({"name": "single"}, optimizer, 1, averaged), world)
    epochs = [epoch_of(loop) for _ in range(2)]
    weights = weights_of(loop)
    loop.close()
    return weights, epochs


def examine(strategy: dict[str, Any], optimizer: str, world: World, folder: Path) -> dict[str, Any]:
    averaged = strategy["name"] != "fsdp" and strategy.get("zero_stage") != 3
    averaged = averaged and optimizer != "schedule_free"
    plan = plan_of(strategy, optimizer, world.size, averaged)
    joined, loop = started(plan, world)
    folder.mkdir(parents=True, exist_ok=True)
    begun = weights_of(loop)
    with rates_used() as used:
        epochs = [epoch_of(loop)]
        loop.save(folder)
        epochs.append(epoch_of(loop))
    weights = weights_of(loop)
    for name in plan.spec.model.freeze:
        assert torch.equal(weights[name], begun[name]), name
    # of the other ranks, whose weights are those of rank 0, nothing is asked
    expected, reference = (weights, epochs) if world.rank else alone(optimizer, averaged)
    classes = loop.class_figures()
    assert classes is not None
    told = [rate for epoch in epochs for rate in epoch.learning_rates]
    found: dict[str, Any] = {
        "ranks_equal": same_on_all_ranks(loop.engine.comm, weights),
        "weights": distance(weights, expected),
        "validation": abs(epochs[-1].val_loss / reference[-1].val_loss - 1),
        "averaged": loop.average is not None,
        "samples": sum(classes.samples),
        "accuracy": sum(classes.correct) / sum(classes.samples) - epochs[-1].val_accuracy,
        "rates_told": [rate for rate, _ in itertools.groupby(told)],
        "rates_used": used,
    }
    loop.close()
    _, fresh = started(plan, world)
    fresh.load(folder)
    again = epoch_of(fresh)
    found["resumed"] = distance(weights_of(fresh), weights)
    found["resumed_validation"] = abs(again.val_loss - epochs[-1].val_loss)
    fresh.close()
    joined.stop()
    return found


def by_shards(world: World) -> dict[str, float]:
    """How far ZeRO's stage 1 leads away by optimisers that the plan refuses there."""
    strategy = make_strategy(DeepSpeedOptions(zero_stage=1))
    strategy.start(world)
    found = {
        options.name: compare(strategy, world, StepSettings(1), optimizer=options).error
        for options in (LarsOptions(), LambOptions())
    }
    strategy.stop()
    return found


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    found: dict[str, Any] = {}
    for name, (strategy, optimizer) in request.items():
        found[name] = examine(strategy, optimizer, world, file.parent / f"{file.name}-{name}")
    if any(strategy["name"] == "deepspeed" for strategy, _ in request.values()):
        found["by shards"] = by_shards(world)
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
