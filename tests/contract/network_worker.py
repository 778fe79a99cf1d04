"""What test_networks.py asks of the ranks of one world: every network, under every variant."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn import functional

from raysuite.data.base import Batch
from raysuite.gate import own_network
from raysuite.gate.strategy_check import comm_of
from raysuite.models import build
from raysuite.parallel import make_strategy
from raysuite.parallel.base import StepSettings, Strategy, World, whole_state
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import Document
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.strategies import StrategyOptions
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.networks import CHANNELS, CLASSES, SIZE

STEPS, GLOBAL_BATCH = 4, 8
FACTS = DatasetFacts(STEPS * GLOBAL_BATCH, 10, CLASSES, CHANNELS, SIZE)
LR, MOMENTUM, DECAY = 0.1, 0.9, 0.01


def network(which: str) -> nn.Module:
    torch.manual_seed(0)
    return build(ModelOptions(name="tests.networks:made", options={"which": which}), FACTS)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (FACTS.train_samples, CHANNELS, SIZE, SIZE)
    labels = torch.randint(0, CLASSES, shape[:1], generator=generator)
    return torch.randn(shape, generator=generator), labels


IMAGES, LABELS = data()


def plain(model: nn.Module) -> tuple[list[float], dict[str, Any]]:
    """A training loop as anyone writes it: losses, and the state in the end."""
    optimizer = torch.optim.SGD(
        [each for each in model.parameters() if each.requires_grad],
        LR,
        MOMENTUM,
        weight_decay=DECAY,
    )
    losses = []
    model.train()
    for images, labels in zip(
        IMAGES.clone().split(GLOBAL_BATCH), LABELS.split(GLOBAL_BATCH), strict=True
    ):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def examine(which: str, strategy: Strategy, world: World) -> dict[str, Any]:
    share = GLOBAL_BATCH // world.size
    model = network(which)
    expected_losses, expected = plain(network(which))
    empty = copy.deepcopy(network(which))
    engine = strategy.prepare(
        model,
        lambda parameters: torch.optim.SGD(parameters, LR, MOMENTUM, weight_decay=DECAY),
        StepSettings(share),
    )
    engine.model.train()
    sums = []
    for step in range(STEPS):
        part = slice(step * GLOBAL_BATCH + world.rank * share, None)
        images, labels = IMAGES[part][:share].clone(), LABELS[part][:share]
        sums.append(engine.step([Batch(images, labels, share, GLOBAL_BATCH)], LR))
    losses = (engine.comm.all_reduce(torch.stack(sums), "sum") / GLOBAL_BATCH).tolist()
    weights = engine.weights()
    flat = torch.cat([each.flatten() for each in weights.values()])
    everyone = engine.comm.all_gather(flat)
    state = whole_state(engine.model, weights)
    empty.load_state_dict(state)  # strict: its own class takes it up
    engine.close()
    return {
        "losses": max(abs(a / b - 1) for a, b in zip(losses, expected_losses, strict=True)),
        "weights": {name: distance(state[name], each) for name, each in expected.items()},
        "in_order": [
            list(state) == list(expected),
            bool((everyone == everyone[0]).all()),
            bool(flat.isfinite().all()),
        ],
    }


def gate(which: str, strategy: Strategy, world: World, options: dict[str, Any]) -> dict[str, Any]:
    """What the gate finds of the network as a run's own."""
    plan = plan_of(which, options, world.size)
    comm = comm_of(plan.spec.strategy, world, strategy)
    return asdict(own_network.compare(plan, world, strategy, comm))


def plan_of(which: str, strategy: dict[str, Any], workers: int) -> RunPlan:
    data = {
        "name": "networks",
        "model": {"name": "tests.networks:made", "options": {"which": which}},
        "data": {"name": "digits"},
        "strategy": strategy,
        "optimizer": {"lr": LR, "weight_decay": DECAY},
        "training": {"epochs": 1, "global_batch": 64},
        "resources": {"workers": workers, "device": "cpu"},
    }
    return make_plans(Document(data, "test"), gpus=0)[0]


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative; absolute where nothing is expected."""
    difference = (found.double() - expected.double()).norm().item()
    return difference / (expected.double().norm().item() or 1.0)


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    adapter: TypeAdapter[StrategyOptions] = TypeAdapter(StrategyOptions)
    found: dict[str, Any] = {}
    for variant, (options, networks, refused) in request.items():
        strategy = make_strategy(adapter.validate_python(options))
        strategy.start(world)
        found[variant] = {which: examine(which, strategy, world) for which in networks}
        for which in networks if world.size > 1 else []:
            found[variant][which]["gate"] = gate(which, strategy, world, options)
        for which in refused:
            found[variant][which] = {"gate": gate(which, strategy, world, options)}
        strategy.stop()
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
