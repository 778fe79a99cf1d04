"""Make the strategy that a spec names: the way in which ranks synchronise their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raysuite.lazy import load
from raysuite.spec.strategies import CustomOptions, StrategyOptions

if TYPE_CHECKING:
    from raysuite.parallel.base import Strategy, World


def make_strategy(options: StrategyOptions, profiled: bool = False) -> Strategy:
    """The strategy that `options` describes. For a user's own class, the strategy is an instance
    made with the options in the spec.

    `profiled`: whether to prepare the framework's own timeline of collectives, if any.
    """
    strategy: Strategy
    if isinstance(options, CustomOptions):
        strategy = load(options.target)(**options.options)
    elif options.has_timeline:
        strategy = load(options.engine)(options, timeline=profiled)
    else:
        strategy = load(options.engine)(options)
    return strategy


@contextmanager
def joined(options: StrategyOptions, world: World, profiled: bool = False) -> Iterator[Strategy]:
    """Yield the strategy, with this process in its group. At the end, leave the group, and undo the
    framework's changes to the process (`process_state.restored`)."""
    # imported here, because it loads torch, which the driver does not need
    from raysuite.parallel.process_state import restored

    with restored(world.device):
        strategy = make_strategy(options, profiled)
        try:
            strategy.start(world)
            yield strategy
        finally:
            strategy.stop()
