"""PyTorch DistributedDataParallel (Li et al. 2020, "PyTorch Distributed", VLDB 13:12)."""

# no `from __future__ import annotations`: torch compares the hook's annotations with classes

import contextlib
import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from raysuite.parallel.base import FrameworkEngine, TorchEngine, TorchGroupStrategy
from raysuite.parallel.marks import backward_waits
from raysuite.spec.strategies import DdpOptions

if TYPE_CHECKING:
    from raysuite.data.base import Batch


class DdpEngine(FrameworkEngine, TorchEngine):
    """A training step that averages the gradients in its last backward pass."""

    options: DdpOptions
    wrapped: DistributedDataParallel

    def wrap(self) -> None:
        options, device = self.options, self.world.device
        if options.compression == "powersgd":  # its hook calls `view` on gradients
            self.model.to(memory_format=torch.contiguous_format)
        with warnings.catch_warnings():
            # newer versions of torch call this option forward_sync_buffers
            warnings.simplefilter("ignore", FutureWarning)
            self.wrapped = DistributedDataParallel(
                self.autocast,
                device_ids=[device] if device.type == "cuda" else None,
                bucket_cap_mb=options.bucket_mb,
                # raysuite averages the buffers itself, in the same way for all strategies
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                static_graph=options.static_graph,
                find_unused_parameters=options.find_unused_parameters,
            )
        _register_compression(self.wrapped, options)

    def add_gradients(self, batch: "Batch", last: bool) -> Tensor:
        with contextlib.nullcontext() if last else self.wrapped.no_sync():
            loss, summed = self.loss(batch, self.wrapped(batch.images))
            with backward_waits(loss) if last else contextlib.nullcontext():
                loss.backward()
        return summed


class Ddp(TorchGroupStrategy):
    """Gradients are averaged in buckets during the backward pass."""

    engine = DdpEngine


def _register_compression(model: DistributedDataParallel, options: DdpOptions) -> None:
    if options.compression == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif options.compression == "bf16":
        # torch's bf16 hook is for NCCL only; this hook does the same, also over Gloo
        model.register_comm_hook(None, _bf16_hook)
    elif options.compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=options.powersgd_rank,
            start_powerSGD_iter=2,
        )
        model.register_comm_hook(state, _powersgd_hook)


def _powersgd_hook(
    state: powerSGD_hook.PowerSGDState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """torch's PowerSGD hook; over Gloo, it handles one bucket after the other.

    The hook's callbacks start collectives and wait for them, and Gloo runs callbacks and
    collectives in the same two threads. With two buckets at once, both threads could wait for ever.
    Ranks could also start the collectives in different orders, and Gloo would pair wrong buckets.
    """
    result: torch.futures.Future[Tensor] = powerSGD_hook.powerSGD_hook(state, bucket)
    if dist.get_backend() == "gloo":
        result.wait()
    return result


def _bf16_hook(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    compressed = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    work = dist.all_reduce(compressed, async_op=True)

    def decompress(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        buffer: Tensor = bucket.buffer().copy_(future.value()[0])
        return buffer

    result: torch.futures.Future[Tensor] = work.get_future().then(decompress)
    return result
