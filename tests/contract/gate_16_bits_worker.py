"""What test_gate.py asks of two ranks of each framework: the verdicts on right and wrong engines in
bf16 and fp16, and in how many parts a step's gradients are reduced."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from raysuite.data.base import Slice
from raysuite.gate import strategy_check
from raysuite.gate.small_network import batch_of, make_engine, make_samples
from raysuite.measure.shares import horovod_collectives
from raysuite.parallel import make_strategy, precision
from raysuite.parallel.base import Engine, StepSettings, TorchEngine, World
from raysuite.parallel.precision import LossScale
from raysuite.spec.strategies import StrategyOptions
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.contract.traffic_worker import Collectives

OPTIONS: TypeAdapter[StrategyOptions] = TypeAdapter(StrategyOptions)


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    found: list[dict[str, Any]] = []
    for given in request["strategies"]:
        options = OPTIONS.validate_python(given)
        found.append({"reductions": reductions(options, world, file)})
        strategy = make_strategy(options)
        strategy.start(world)
        for defect in request["defects"]:
            short, strides = "fp16", "contiguous"
            if defect == "bf16":
                short, strides = "bf16", "channels_last"
            settings = StepSettings(1, 2, 0.5, short, memory_format=strides)
            with DEFECTS[defect](world) if defect in DEFECTS else contextlib.nullcontext():
                verdict = strategy_check.examine(options, world, strategy, settings)
            found[-1][defect] = {
                "passed": verdict.passed,
                "message": verdict.message,
                "error": verdict.error,
                "error_16_bits": verdict.error_16_bits,
            }
        strategy.stop()
    write(found, file, world.rank)


def reductions(options: StrategyOptions, world: World, file: Path) -> list[int]:
    """Of the gradients of a step: as a run has them, and with the gate's settings for several."""
    if options.name == "horovod":  # what is ready within a cycle is reduced in one part
        options = options.model_copy(update={"cycle_time_ms": 20.0})
    several = options.several_reductions()
    if options.name not in ("horovod", "deepspeed") or several is None:
        return []
    first = make_strategy(options, profiled=True)
    first.start(world)
    found = []
    for changed, pause_s in ((options, 0.0), several):
        strategy = make_strategy(changed)
        strategy.start(world)
        engine = make_engine(strategy, world, StepSettings(1), pause_s=pause_s)
        engine.model.train()
        data = make_samples(2, world.device)
        batch = batch_of(data, Slice(np.array([world.rank]), 1, 2))
        timeline = file.with_name(f"{file.name}-timeline-{len(found)}")
        with engine.timeline(timeline), Collectives() as seen:
            engine.step([batch], 0.1)
        counted = sum(count for name, count in seen.calls.items() if "reduce" in name)
        if options.name == "horovod":  # the first rank alone has a timeline
            counted = len(horovod_collectives(timeline)) if world.rank == 0 else 0
        found.append(counted)
        engine.close()
    first.stop()
    return found


def _in_16_bits(owner: type, name: str, wrong: Callable[..., Any]) -> Any:
    """`wrong(right, self, ...)` in place of a method, in engines of 16 bits alone."""
    right = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        scale = self if isinstance(self, LossScale) else self.scale
        if not scale.enabled:
            return right(self, *args, **kwargs)
        return wrong(right, self, *args, **kwargs)

    return mock.patch.object(owner, name, method)


def _gradients(change: Callable[[list[Tensor]], object]) -> Callable[[World], Any]:
    """`change` made to the unscaled gradients."""

    def wrong(right: Any, self: LossScale) -> None:
        right(self)
        change([each.grad for each in self._parameters if each.grad is not None])

    return lambda world: _in_16_bits(LossScale, "decide", wrong)


def _left_scaled(world: World) -> Any:
    def wrong(right: Any, self: LossScale, gradients: list[Tensor]) -> None:
        right(self, gradients[1:])

    return _in_16_bits(LossScale, "_unscale_in_place", wrong)


def _not_unscaled(world: World) -> Any:
    def wrong(right: Any, self: LossScale, gradients: list[Tensor]) -> None:
        right(self, [each.clone() for each in gradients])

    return _in_16_bits(LossScale, "_unscale_in_place", wrong)


def _unscaled_twice(world: World) -> Any:
    def wrong(right: Any, self: LossScale, gradients: list[Tensor]) -> None:
        right(self, gradients)
        right(self, gradients)

    return _in_16_bits(LossScale, "_unscale_in_place", wrong)


def _stale(world: World) -> Any:
    """Unscales by the scale that the run began with."""

    def wrong(right: Any, self: LossScale, gradients: list[Tensor]) -> None:
        self._carried *= precision._START / self.factor
        right(self, gradients)

    return _in_16_bits(LossScale, "_unscale_in_place", wrong)


def _without_world_size(world: World) -> Any:
    def wrong(right: Any, self: LossScale, gradients: list[Tensor]) -> None:
        self._carried *= self._comm.size
        right(self, gradients)

    return _in_16_bits(LossScale, "_unscale_in_place", wrong)


def _skips(decision: Callable[[bool, World], bool]) -> Callable[[World], Any]:
    def make(world: World) -> Any:
        def wrong(right: Any, self: LossScale) -> None:
            right(self)
            self._skip = decision(self._skip, world)

        return _in_16_bits(LossScale, "decide", wrong)

    return make


def _clips_before_unscaling(world: World) -> Any:
    def wrong(right: Any, self: TorchEngine) -> None:
        self.clip()
        with mock.patch.object(type(self), "clip"):
            right(self)

    return _in_16_bits(TorchEngine, "take_step", wrong)


def _loss_scaled(world: World) -> Any:
    def wrong(right: Any, self: Engine, *args: Any) -> tuple[Tensor, Tensor]:
        share, total = right(self, *args)
        return share, total * self.scale.factor

    return _in_16_bits(Engine, "loss", wrong)


def _every_step_skipped(world: World) -> Any:
    return mock.patch.multiple(precision, _START=2.0**100, _SMALLEST=0.0)


@contextlib.contextmanager
def _never_skipped_and_zeroed(world: World) -> Iterator[None]:
    """An overflow is cleared instead of skipped: momentum and decay move the weights."""

    def wrong(right: Any, self: LossScale) -> None:
        right(self)
        for each in self._parameters:
            if each.grad is not None:
                each.grad.nan_to_num_(0.0, 0.0, 0.0)
        self._skip = False

    with _in_16_bits(LossScale, "decide", wrong):
        yield


def _one_layer_lost(world: World) -> Any:
    return _gradients(lambda gradients: gradients[2].zero_())(world)


DEFECTS: dict[str, Callable[[World], Any]] = {
    "start scale 2^100": _every_step_skipped,
    "gradients times 0": _gradients(lambda gradients: torch._foreach_mul_(gradients, 0.0)),
    "gradients times 4": _gradients(lambda gradients: torch._foreach_mul_(gradients, 4.0)),
    "gradients times -1": _gradients(lambda gradients: torch._foreach_mul_(gradients, -1.0)),
    "not unscaled": _not_unscaled,
    "unscaled twice": _unscaled_twice,
    "one parameter left scaled": _left_scaled,
    "one parameter without gradient": _one_layer_lost,
    "unscaled by the first scale": _stale,
    "unscaled without the world size": _without_world_size,
    "overflow not skipped": _skips(lambda skip, world: False),
    "overflow skipped by one rank": _skips(lambda skip, world: skip and world.rank == 1),
    "every step skipped": _skips(lambda skip, world: True),
    "good steps skipped": _skips(lambda skip, world: not skip),
    "overflow cleared, not skipped": _never_skipped_and_zeroed,
    "clipped before unscaling": _clips_before_unscaling,
    "loss recorded with its scale": _loss_scaled,
}

if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
