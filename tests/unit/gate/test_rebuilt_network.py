"""A network that a framework builds anew: other samples are drawn only where rounding may explain
the distance."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from raysuite.gate import rebuilt_network, small_network
from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, World
from raysuite.parallel.single import Single
from tests.unit.gate.test_small_network import Recorded


class Off(Single):
    """Weights are off by `errors[n]` before the step of the n-th network."""

    def __init__(self, *errors: float) -> None:
        super().__init__()
        self.errors, self.made = errors, 0

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + self.errors[self.made])
        self.made += 1
        return super().prepare(model, make_optimizer, settings)


@pytest.mark.parametrize(
    ("errors", "made", "passes"),
    [
        ((0.0,), 1, True),
        ((3e-4, 0.0), 2, True),
        ((3e-4, 3e-4, 3e-4), 3, False),
        ((math.inf, 0.0), 1, False),
        ((math.nan, 0.0), 1, False),
    ],
)
def test_a_distance_counts_once_three_draws_have_shown_it(
    errors: tuple[float, ...], made: int, passes: bool
) -> None:
    world = World(0, 1, 0, torch.device("cpu"))
    strategy = Off(*errors)
    strategy.start(world)
    net, dropout = small_network.small_net(world, batch_norm=True), nn.Dropout(0.5)
    whole = nn.Sequential(net, dropout)
    found = rebuilt_network.compare_rebuilt(strategy, world, whole, net.IMAGE, net.CLASSES)
    assert (strategy.made, found.error <= rebuilt_network.TOLERANCE_REBUILT) == (made, passes)
    assert dropout.p == 0


class OtherMomentum(Recorded):
    """Of running statistics, which no step of training shows."""

    def prepare(self, model: nn.Module, *others: Any) -> Engine:
        model.norm.momentum = 0.5
        return super().prepare(model, *others)


def test_running_statistics_are_compared_and_used_after_a_step_of_all_samples() -> None:
    world, strategy = World.alone(torch.device("cpu")), OtherMomentum()
    strategy.start(world)
    net = small_network.small_net(world, batch_norm=True)
    found = rebuilt_network.compare_rebuilt(strategy, world, net, net.IMAGE, net.CLASSES)
    assert found.losses == 0
    assert min(found.weights, found.logits) > 0.01
    made = rebuilt_network.DRAWS
    assert (strategy.settings, strategy.steps) == (
        [StepSettings(8)] * made,
        [(0.01, [8], False)] * made,
    )


def test_ranks_that_differ_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_network, "same_on_all_ranks", lambda comm, weights: False)
    world = World(0, 1, 0, torch.device("cpu"))
    strategy = Off(3e-4, 0.0)
    strategy.start(world)
    net = small_network.small_net(world, batch_norm=True)
    found = rebuilt_network.compare_rebuilt(strategy, world, net, net.IMAGE, net.CLASSES)
    assert (strategy.made, found.ranks_equal) == (1, False)
