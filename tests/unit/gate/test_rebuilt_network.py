"""A network that a framework builds anew: other samples are drawn only where rounding may explain
the distance."""

from __future__ import annotations

import math

import pytest
import torch

from raysuite.gate import rebuilt_network, small_network
from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, World
from raysuite.parallel.single import Single


class Off(Single):
    """Weights are off by `errors[n]` before the step of the n-th network."""

    def __init__(self, *errors: float) -> None:
        super().__init__()
        self.errors, self.made = errors, 0

    def prepare(
        self, model: torch.nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
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
    net = small_network.small_net(world, batch_norm=True)
    found = rebuilt_network.compare_rebuilt(strategy, world, net, net.IMAGE, net.CLASSES)
    assert (strategy.made, found.error <= rebuilt_network.TOLERANCE_REBUILT) == (made, passes)


def test_ranks_that_differ_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_network, "same_on_all_ranks", lambda comm, weights: False)
    world = World(0, 1, 0, torch.device("cpu"))
    strategy = Off(3e-4, 0.0)
    strategy.start(world)
    net = small_network.small_net(world, batch_norm=True)
    found = rebuilt_network.compare_rebuilt(strategy, world, net, net.IMAGE, net.CLASSES)
    assert (strategy.made, found.ranks_equal) == (1, False)
