"""Strategies: how gradients are made equal on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysuite.lazy import load
from raysuite.spec.strategies import CustomOptions, StrategyOptions

if TYPE_CHECKING:
    from raysuite.parallel.base import Strategy


def make_strategy(options: StrategyOptions, profiled: bool = False) -> Strategy:
    """The strategy that `options` describes; a custom one is called with its own options.

    `profiled`: prepare the framework's own timeline of collectives, where it has one.
    """
    strategy: Strategy
    if isinstance(options, CustomOptions):
        strategy = load(options.target)(**options.options)
    elif options.has_timeline:
        strategy = load(options.engine)(options, timeline=profiled)
    else:
        strategy = load(options.engine)(options)
    return strategy
