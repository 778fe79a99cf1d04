"""A data set and strategies that sleep, and note when: what a profile must find."""

# no `from __future__ import annotations`: torch looks at the hook's annotations as objects

import os
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, TorchEngine, set_lr
from raysuite.parallel.comm import TorchComm
from raysuite.parallel.ddp import Ddp, DdpEngine
from raysuite.parallel.marks import communication
from raysuite.spec.strategies import DdpOptions
from tests.tiny_model import Tiny

Span = tuple[float, float]
"""Begin and end, in seconds of the monotonic clock."""

loads: list[Span] = []
steps: list[Span] = []
synchronisations: list[Span] = []
"""Of this process, in order."""


class Set:
    """Noise of two classes; each sample takes `seconds` on the ranks that `sleepy` names."""

    classes = 2

    def __init__(self, split: str, seconds: float = 0.0, sleepy: Sequence[int] = (0, 1)) -> None:
        self._samples = {"train": 32, "val": 4}[split]
        self._seconds = seconds if int(os.environ["RANK"]) in sleepy else 0.0

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        begin = time.perf_counter()
        time.sleep(self._seconds)
        pixels = np.random.default_rng(sample).integers(0, 255, (8, 8, 1), np.uint8)
        loads.append((begin, time.perf_counter()))
        return pixels, sample % 2


class Noting(Ddp):
    """DDP that notes its steps."""

    def __init__(self) -> None:
        super().__init__(DdpOptions())

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        return noting(super().prepare(model, make_optimizer, settings))


class SleepingHook(Ddp):
    """A communication hook whose result comes late, as over a slow network.

    It says nothing of this to any profiler.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(DdpOptions())
        self._seconds = seconds

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        engine = super().prepare(model, make_optimizer, settings)
        assert isinstance(engine, DdpEngine)
        engine.wrapped.register_comm_hook(_of_a_run(model, self._seconds), _late)
        return noting(engine)


def _of_a_run(model: nn.Module, seconds: float) -> float:
    """Nothing with the gate's small networks, whose steps nobody profiles."""
    return seconds if isinstance(model, Tiny) else 0.0


def _late(seconds: float, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    begin = time.perf_counter()
    sums = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(sums, async_op=True)
    result: torch.futures.Future[Tensor] = torch.futures.Future()

    def arrive() -> None:
        work.wait()
        time.sleep(seconds)
        synchronisations.append((begin, time.perf_counter()))
        result.set_result(sums)

    # in a thread of its own: `then` would sleep in the backward pass, and not in what waits for
    # it, whenever the all-reduce is through before `then` is called
    threading.Thread(target=arrive).start()
    return result


class ByHand(Ddp):
    """Averages gradients after the backward pass, slowly, and marks that as communication."""

    def __init__(self, seconds: float) -> None:
        super().__init__(DdpOptions())
        self._seconds = seconds

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        assert self._world is not None
        engine = ByHandEngine(model, TorchComm(self._world.device), self._world, settings)
        engine.optimizer = make_optimizer(model.parameters())
        engine.seconds = _of_a_run(model, self._seconds)
        return noting(engine)


class ByHandEngine(TorchEngine):
    seconds = 0.0

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for batch in micro_batches:
            loss, summed = self.loss(batch, self.autocast(batch.images))
            loss.backward()
            total += summed
        begin = time.perf_counter()
        with communication():
            time.sleep(self.seconds)
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
        synchronisations.append((begin, time.perf_counter()))
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= self.world.size
        self.take_step()
        return total


def noting(engine: Engine) -> Engine:
    """The engine, which writes down when it steps."""
    step = engine.step

    def noted(micro_batches: Sequence[Batch], lr: float) -> Tensor:
        begin = time.perf_counter()
        loss = step(micro_batches, lr)
        steps.append((begin, time.perf_counter()))
        return loss

    engine.step = noted  # type: ignore[method-assign]
    return engine
