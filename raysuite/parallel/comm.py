"""The few collectives that the training loop itself needs, over whichever group a strategy has."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

Reduction = Literal["sum", "max", "min"]
Pending = Callable[[], Tensor]
"""Waits for a collective that is in progress, and returns its result."""


class Comm(Protocol):
    """Collectives over all ranks; every rank must make the same calls in the same order."""

    size: int

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        """`value` combined over ranks, on all of them; `value` itself is left as it is."""

    def all_gather(self, value: Tensor) -> Tensor:
        """[ranks, *value.shape]: every rank's `value`, on all of them."""

    def begin_max(self, value: Tensor) -> Pending:
        """The largest of a small `value` on the CPU, over ranks; returns before it is known.

        No device waits for it. Other collectives may be made before it is waited for.
        """


class NoComm:
    """One process."""

    size = 1

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        return value.clone()

    def all_gather(self, value: Tensor) -> Tensor:
        return value.unsqueeze(0).clone()

    def begin_max(self, value: Tensor) -> Pending:
        return value.clone


class TorchComm:
    """torch.distributed's default group: NCCL for tensors on a GPU, Gloo on a CPU."""

    _OPS: ClassVar = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

    def __init__(self, device: torch.device) -> None:
        self.size = dist.get_world_size()
        self._device = device

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        result = value.detach().to(self._device, copy=True)
        dist.all_reduce(result, self._OPS[reduction])
        return result.to(value.device)

    def all_gather(self, value: Tensor) -> Tensor:
        own = value.detach().to(self._device).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own)
        return torch.stack(parts).to(value.device)

    def begin_max(self, value: Tensor) -> Pending:
        result = value.detach().clone()  # on the CPU: by Gloo, whatever the device
        work = dist.all_reduce(result, self._OPS["max"], async_op=True)

        def wait() -> Tensor:
            work.wait()
            return result

        return wait


def gather_plain(comm: Comm, value: Any) -> list[Any]:
    """Every rank's plain data, as JSON, on all of them. torch's collectives of objects unpickle
    what arrives, and anybody who reaches Gloo's ports could send it."""
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = comm.all_gather(torch.tensor([len(content)])).flatten().tolist()
    row = torch.zeros(max(sizes), dtype=torch.uint8)
    row[: len(content)] = content
    rows = comm.all_gather(row)
    return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]


def average_buffers(model: nn.Module, comm: Comm) -> None:
    """Give all ranks the mean of their floating-point buffers: BatchNorm's running statistics.

    Each rank sees other samples, so its statistics differ, and frameworks disagree on what to do
    about it (DDP copies rank 0's, Horovod and DeepSpeed do nothing). Averaged before each
    validation and checkpoint, the model that is validated is the same on all ranks.
    """
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not buffers or comm.size == 1:
        return
    flat = torch.cat([buffer.detach().reshape(-1).float() for buffer in buffers])
    mean = comm.all_reduce(flat, "sum") / comm.size
    start = 0
    for buffer in buffers:
        buffer.copy_(mean[start : start + buffer.numel()].view_as(buffer))
        start += buffer.numel()


def join_torch_group(rank: int, size: int, device: torch.device) -> bool:
    """Join torch's default process group from the environment; False if it was joined already.

    A world of one needs no rendezvous, and so no MASTER_ADDR.
    """
    if dist.is_initialized():
        return False
    if size == 1:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
    else:
        store = shared_store("torch", rank, size)
    # Gloo connects two ranks when they first exchange something, not each with all at the start
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=size, store=store)
    return True


def leave_torch_group() -> None:
    """Leave torch's default process group.

    torch can keep the group's threads alive after this. A thread of Gloo that frees the last
    collective's tensors acquires the GIL; where Python is already ending, that aborts the
    process. So a process that ends soon after this releases the GIL to them first.
    """
    global _left_at
    dist.destroy_process_group()
    if not _left_at:
        atexit.register(_let_go)
    _left_at = time.monotonic()


def _let_go() -> None:
    time.sleep(max(0.0, _left_at + _LET_GO_SECONDS - time.monotonic()))


_LET_GO_SECONDS = 0.2
_left_at = 0.0

_joins: Counter[tuple[str, int]] = Counter()
_store: Any = None


def use_store(store: Any) -> None:
    """Make the groups that this process joins from now on use `store`, not torchrun's."""
    global _store
    _store = store


def shared_store(purpose: str, rank: int, size: int) -> Any:
    """The key-value store of this world, with keys of their own at each call.

    Several runs of one process join and leave in turn, and would find each other's addresses.
    All ranks of a world must call it equally often for each `purpose`; the worlds of one size are
    the same ranks.
    """
    _joins[purpose, size] += 1
    prefix = f"raysuite/{purpose}/{size}/{_joins[purpose, size]}"
    return PrefixStore(prefix, _store or _environment_store(rank, size))


@cache
def _environment_store(rank: int, size: int) -> Any:
    """One a process: where no torchrun runs the store, rank 0 does, and its port is taken."""
    store, _, _ = next(iter(rendezvous("env://", rank, size)))
    return store
