"""Strategies: how gradients are made equal on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysuite.lazy import load
from raysuite.spec.strategies import CustomOptions, StrategyOptions

if TYPE_CHECKING:
    from raysuite.parallel.base import Strategy

STRATEGIES = {
    "single": "raysuite.parallel.single:Single",
    "ddp": "raysuite.parallel.ddp:Ddp",
    "horovod": "raysuite.parallel.horovod:Horovod",
    "deepspeed": "raysuite.parallel.deepspeed:DeepSpeed",
    "pipeline": "raysuite.parallel.pipeline.engine:Pipeline",
}


def make_strategy(options: StrategyOptions, profiled: bool = False) -> Strategy:
    """The strategy that `options` describes; a custom one is called with its own options.

    `profiled`: the framework's own record of its collectives can be asked for.
    """
    strategy: Strategy
    if isinstance(options, CustomOptions):
        strategy = load(options.target)(**options.options)
    elif options.name == "horovod":
        strategy = load(STRATEGIES[options.name])(options, timeline=profiled)
    else:
        strategy = load(STRATEGIES[options.name])(options)
    return strategy
