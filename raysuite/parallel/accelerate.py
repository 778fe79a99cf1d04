"""Train with Hugging Face Accelerate, which wraps PyTorch's DDP. The comparison with the strategy
ddp shows the cost of the wrapper."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import accelerate
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor

from raysuite.parallel.base import FrameworkEngine, TorchEngine, TorchGroupStrategy, World

if TYPE_CHECKING:
    from raysuite.data.base import Batch


@contextlib.contextmanager
def _variables(world: World) -> Iterator[None]:
    """Within the context, set torchrun's variables, from which Accelerate reads the rank."""
    before = dict(os.environ)
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(world.device.index if world.device.type == "cuda" else world.local_rank),
        LOCAL_WORLD_SIZE=str(world.size),
        OMP_NUM_THREADS=str(torch.get_num_threads()),  # else Accelerate changes it
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class AccelerateEngine(FrameworkEngine, TorchEngine):
    """A training step through Accelerate's module, optimiser and backward pass."""

    def wrap(self) -> None:
        # a process has only one AcceleratorState, which may still be that of an earlier world
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        with _variables(self.world):
            self._accelerator = accelerate.Accelerator(
                cpu=self.world.device.type == "cpu",
                kwargs_handlers=[
                    accelerate.DistributedDataParallelKwargs(
                        bucket_cap_mb=self.options.bucket_mb,
                        broadcast_buffers=False,  # as in raysuite's strategy ddp
                        gradient_as_bucket_view=True,
                    )
                ],
            )
        with warnings.catch_warnings():
            # newer versions of torch call broadcast_buffers forward_sync_buffers
            warnings.simplefilter("ignore", FutureWarning)
            self._module, self._optimizer = self._accelerator.prepare(self.autocast, self.optimizer)

    def add_gradients(self, batch: Batch, last: bool) -> Tensor:
        with contextlib.nullcontext() if last else self._accelerator.no_sync(self._module):
            loss, summed = self.loss(batch, self._module(batch.images))
            self._accelerator.backward(loss)
        return summed

    def update_weights(self) -> None:
        self._optimizer.step()

    def clip_to(self, limit: float) -> Tensor:
        norm: Tensor = self._accelerator.clip_grad_norm_(self._module.parameters(), limit)
        return norm

    def close(self) -> None:
        super().close()
        self._accelerator.free_memory()


class Accelerate(TorchGroupStrategy):
    """Gradients are averaged by the DDP that Accelerate sets up, on torch's group."""

    engine = AccelerateEngine
