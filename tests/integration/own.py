"""What a user keeps beside her spec: models and a strategy of her own."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings
from raysuite.parallel.ddp import Ddp, DdpEngine
from raysuite.spec.strategies import DdpOptions

HOLD_AT_CALL = 15
"""A forward pass of the third epoch, where an epoch has six steps; of the last one of five, where a
run goes on behind the second."""


class Net(nn.Module):
    """Without BatchNorm, so that two ranks compute what one process does."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * image_size**2, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


class Holding(Net):
    """Stops in the third epoch while the file `hold-BACKEND-SEED` is there.

    Its last rank does, and says so by its process id in `held`; the others wait in a collective.
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__(num_classes, in_channels, image_size)
        backend = "horovod" if "HOROVOD_RANK" in os.environ else "torch"
        self._hold = Path(f"hold-{backend}-{torch.initial_seed()}").absolute()
        self._calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self._calls += self.training
        if self._calls == HOLD_AT_CALL and _rank() == _size() - 1 and self._hold.exists():
            partial = self._hold.with_name("held.partial")
            partial.write_text(str(os.getpid()))
            partial.replace(self._hold.with_name("held"))
            while self._hold.exists():
                time.sleep(0.02)
        return super().forward(images)


class Slow(Net):
    """Takes its time over each step, so that there is a middle of an epoch to be stopped in.

    It takes much more behind its first epoch while the file `dawdle` is there.
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__(num_classes, in_channels, image_size)
        self._dawdle = Path("dawdle").absolute()
        self._validated = False

    def forward(self, images: Tensor) -> Tensor:
        self._validated |= not self.training
        if self.training:
            time.sleep(1 if self._validated and self._dawdle.exists() else 0.1)
        return super().forward(images)


class Raising(Net):
    """Fails on rank 1 alone, with words that a lost connection might use too."""

    def forward(self, images: Tensor) -> Tensor:
        if self.training and _rank() == 1:
            raise RuntimeError("the skip connection does not fit its peer")
        return super().forward(images)


class Failing(Net):
    """Fails from its second epoch's beginning on, in the way that is asked for, or not at all.

    A slow one takes as many seconds for a step as the file `pace` says, if there is one.
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int, how: str = "") -> None:
        super().__init__(num_classes, in_channels, image_size)
        self._how = how
        self._pace = Path("pace").absolute()
        self._validated = False

    def forward(self, images: Tensor) -> Tensor:
        self._validated |= not self.training
        if self._validated and self.training:
            if self._how == "raises":
                raise ValueError("the sun went down")
            if self._how == "out of memory":
                torch.empty(10**15)
            if self._how == "hangs":
                threading.Event().wait()
            if self._how == "slow":
                time.sleep(float(self._pace.read_text()) if self._pace.exists() else 0.3)
        return super().forward(images)


class Unsynchronized(Ddp):
    """Every rank goes its own way, which is fast and wrong."""

    def __init__(self) -> None:
        super().__init__(DdpOptions())

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        engine = super().prepare(model, make_optimizer, settings)
        assert isinstance(engine, DdpEngine)
        engine.wrapped.require_backward_grad_sync = False
        return engine


def _rank() -> int:
    if dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("HOROVOD_RANK", "0"))


def _size() -> int:
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("HOROVOD_SIZE", "1"))
