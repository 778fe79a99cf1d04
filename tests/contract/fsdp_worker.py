"""What test_fsdp.py asks of the ranks of one world: memory, and a checkpoint of another world."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raysuite.models.cifar_resnet import CifarResNet
from raysuite.parallel import make_strategy
from raysuite.parallel.base import Engine, StepSettings, World
from raysuite.parallel.precision import local_part
from raysuite.spec.strategies import DdpOptions, FsdpOptions
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.contract.strategy_worker import GLOBAL_BATCH, distance, engine_of, train


def held_bytes(engine: Engine) -> int:
    """Of weights and optimiser state on this rank."""
    optimizer: Any = vars(engine)["optimizer"]
    kept: Iterable[Any] = [each for state in optimizer.state.values() for each in state.values()]
    tensors = [*engine.model.parameters(), *(each for each in kept if isinstance(each, Tensor))]
    return sum(local_part(each).numel() * each.element_size() for each in tensors)


def memory(world: World) -> dict[str, int]:
    """Of a ResNet after a step of momentum SGD."""
    found = {}
    for options in (DdpOptions(), FsdpOptions()):
        strategy = make_strategy(options)
        strategy.start(world)
        torch.manual_seed(0)
        engine = strategy.prepare(
            CifarResNet(20, in_channels=1),
            lambda parameters: torch.optim.SGD(parameters, 0.1, 0.9),
            StepSettings(1),
        )
        for parameter in engine.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        vars(engine)["optimizer"].step()
        found[options.name] = held_bytes(engine)
        engine.close()
        strategy.stop()
    return found


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    folder = Path(request["folder"])
    found: dict[str, Any] = memory(world) if request["save"] else {}
    strategy = make_strategy(FsdpOptions(copies=request["copies"]))
    strategy.start(world)
    engine = engine_of(strategy, StepSettings(GLOBAL_BATCH // world.size))
    if request["save"]:
        train(engine, world, [0])
        folder.mkdir(exist_ok=True)
        engine.save(folder)
    else:
        engine.load(folder)
    losses = train(engine, world, [1])
    weights = engine.weights()
    if request["save"] and world.rank == 0:
        torch.save(weights, folder / "expected.pt")
    if not request["save"]:
        found["weights"] = distance(weights, torch.load(folder / "expected.pt"))
    found["losses"] = losses
    strategy.stop()
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
