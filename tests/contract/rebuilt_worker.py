"""What test_rebuilt.py asks of one rank: the error of a rebuilt network with each flaw."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from raysuite.gate import small_network, strategy_check
from raysuite.gate.rebuilt_network import compare_rebuilt
from raysuite.models.cifar_resnet import CifarResNet
from raysuite.parallel import make_strategy
from raysuite.spec.strategies import STRATEGY_OPTIONS
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.strategies.wrong_layers import FLAWS, flawed


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    options = STRATEGY_OPTIONS[request["strategy"]]()  # type: ignore[call-arg]
    strategy = make_strategy(options)
    strategy.start(world)
    found: dict[str, Any] = {}
    for flaw in ("none", *FLAWS):
        with flawed(flaw):
            net = small_network.small_net(world, batch_norm=True)
            compared = compare_rebuilt(strategy, world, net, net.IMAGE, net.CLASSES)
            found[flaw] = compared.error
    torch.manual_seed(0)
    resnet = CifarResNet(20)
    found["resnet20"] = compare_rebuilt(strategy, world, resnet, (3, 32, 32), 10).error
    with flawed("momentum"):  # of running statistics, which no training step shows
        verdict = strategy_check.examine(options, world, strategy)
    found["verdict"] = {"passed": verdict.passed, "error": verdict.error}
    strategy.stop()
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
