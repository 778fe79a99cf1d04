"""What test_gate.py asks of the ranks of each framework: what the gate finds in 16 bits and lossy
options, right ones and ones with a defect."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from pydantic import TypeAdapter
from torch import Tensor, autograd, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from raysuite.data.base import Batch
from raysuite.gate.small_network import compare
from raysuite.gate.strategy_check import (
    _differing_16_bits,
    _faults,
    _in_parts,
    beyond_bounds,
    lossy_gradients,
)
from raysuite.parallel import make_strategy
from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, Strategy, World
from raysuite.spec.strategies import StrategyOptions
from raysuite.train.world import world_from_environment
from tests.contract.launches import write

OPTIONS: TypeAdapter[StrategyOptions] = TypeAdapter(StrategyOptions)
FACTORS: dict[str, Callable[[int, int], float]] = {
    "sum for mean": lambda rank, size: size,
    "one rank lost": lambda rank, size: float(rank < size - 1),
    "one rank twice": lambda rank, size: 1.0 + (rank == 0),
    "scale forgotten": lambda rank, size: 2.0**8,
    "twice": lambda rank, size: 2.0,
    "half": lambda rank, size: 0.5,
}
"""Defect -> what a rank's gradients are multiplied by before they are reduced."""
BUCKETS: dict[str, Callable[[int, int], float]] = {
    "sum for mean, after compression": lambda bucket, size: size,
    "half the buckets": lambda bucket, size: 1.0 - bucket % 2,
    "one bucket of three lost": lambda bucket, size: float(bucket % 3 > 0),
}
"""Defect of DDP or DeepSpeed -> what a bucket is multiplied by after it was reduced."""
DEFECTS = (*FACTORS, "half the layers")


class Defective:
    """A strategy whose engines have a defect."""

    def __init__(self, strategy: Strategy, world: World, defect: str) -> None:
        self._strategy, self._world, self._defect = strategy, world, defect
        self.lossy = strategy.lossy

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        if self._defect == "half the layers":
            for layer in (vars(model)["_modules"][name] for name in ("second", "classify")):
                _leave_out(layer)
        engine = self._strategy.prepare(model, make_optimizer, settings)
        if self._defect in FACTORS:
            factor, loss = FACTORS[self._defect](self._world.rank, self._world.size), engine.loss

            def wrong(batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
                share, total = loss(batch, logits)
                return share * factor, total

            engine.loss = wrong  # type: ignore[method-assign]
        return engine


class _NoGradient(autograd.Function):
    """The identity, whose gradient is zero."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 0


def _leave_out(layer: nn.Module) -> None:
    """Its parameters get gradients of zero, which are reduced like the others."""

    def forward(images: Tensor) -> Tensor:
        weight, bias = (_NoGradient.apply(each) for each in (layer.weight, layer.bias))
        if isinstance(layer, nn.Linear):
            return functional.linear(images, weight, bias)
        assert isinstance(layer, nn.Conv2d)
        return functional.conv2d(images, weight, bias, layer.stride, layer.padding)  # type: ignore[arg-type]

    layer.forward = forward  # type: ignore[method-assign]


def _hooked(multiply: Callable[[int], float]) -> Callable[..., None]:
    """DDP's `register_comm_hook`, with hooks whose result for a bucket is multiplied."""

    def register(self: Any, state: Any, hook: Callable[..., Any]) -> None:
        def wrong(state: Any, bucket: Any) -> Any:
            factor = multiply(bucket.index())

            def multiplied(future: Any) -> Tensor:
                found = future.value()
                return (found[0] if isinstance(found, Sequence) else found).mul_(factor)

            return hook(state, bucket).then(multiplied)

        wrong.__annotations__ = {}  # torch compares them with classes
        _RIGHT(self, state, wrong)

    return register


_RIGHT = DistributedDataParallel.register_comm_hook


@contextmanager
def wrong_buckets(name: str, multiply: Callable[[int], float]) -> Iterator[None]:
    """What a bucket of a strategy called `name` holds is multiplied, once it was reduced."""
    if name == "ddp":
        with mock.patch.object(DistributedDataParallel, "register_comm_hook", _hooked(multiply)):
            yield
        return
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    reduced = itertools.count()

    def whole(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args, **kwargs: right(*args, **kwargs).mul_(multiply(next(reduced)))

    def shards(right: Callable[..., None]) -> Callable[..., None]:
        def wrong(self: Any, parameters: Any, gradients: list[Tensor]) -> None:
            factor = multiply(next(reduced))
            right(self, parameters, [each * factor for each in gradients])

        return wrong

    with ExitStack() as stack:
        for owner, method, change in (
            (DeepSpeedEngine, "allreduce_bucket", whole),  # stage 0
            (DeepSpeedZeroOptimizer, "allreduce_bucket", whole),
            (DeepSpeedZeroOptimizer_Stage3, "partition_grads", shards),
        ):
            wrong = change(getattr(owner, method))
            stack.enter_context(mock.patch.object(owner, method, wrong))
        yield


def main(request: tuple[dict[str, Any], str, list[str]], file: Path) -> None:
    world = world_from_environment("cpu")
    given, precision, defects = request
    options = OPTIONS.validate_python(given)
    strategy = make_strategy(options)
    strategy.start(world)
    settings = StepSettings(1, 2, None, precision, 0.1)
    found: dict[str, list[str]] = {}
    for defect in ("", *defects):
        wrong: Any = Defective(strategy, world, defect)
        buckets: AbstractContextManager[None] = nullcontext()
        parts, pause_s = wrong, 0.0
        if defect in BUCKETS:
            buckets = wrong_buckets(options.name, partial(BUCKETS[defect], size=world.size))
            parts, pause_s = _in_parts(strategy, options, world) or (wrong, 0.0)
        with buckets:
            if strategy.lossy:
                lossy = lossy_gradients(options.examined(), world, wrong, settings)
                found[defect] = _faults(lossy) + beyond_bounds(lossy)
            else:
                compared = [compare(parts, world, settings, pause_s=pause_s)]
                found[defect] = _faults(compared) + _differing_16_bits(compared)
    strategy.stop()
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
