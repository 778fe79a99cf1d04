"""The collectives that the training loop itself needs, over the process group of any strategy."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from raysuite.nested import real_views

Reduction = Literal["sum", "max", "min"]
Pending = Callable[[], Tensor]
"""Wait for a collective that is in progress, and return its result."""


class Comm(Protocol):
    """Collectives over all ranks; every rank must make the same calls in the same order."""

    size: int

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        """`value` reduced over ranks, returned on all ranks; `value` itself is not changed."""

    def all_gather(self, value: Tensor) -> Tensor:
        """[ranks, *value.shape]: every rank's `value`, returned on all ranks."""

    def begin_max(self, value: Tensor) -> Pending:
        """Begin to reduce a small `value` on the CPU to its maximum over ranks, and return at once.

        The GPU does not wait. Other collectives may run before the caller waits for the result.
        """


class NoComm:
    """The collectives of a single process."""

    size = 1

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        return value.clone()

    def all_gather(self, value: Tensor) -> Tensor:
        return value.unsqueeze(0).clone()

    def begin_max(self, value: Tensor) -> Pending:
        return value.clone


class TorchComm:
    """Collectives of torch's default group: NCCL for GPU tensors, Gloo for CPU tensors."""

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
        result = value.detach().clone()  # stays on the CPU, and is reduced by Gloo
        work = dist.all_reduce(result, self._OPS["max"], async_op=True)

        def wait() -> Tensor:
            work.wait()
            return result

        return wait


def gather_plain(comm: Comm, value: Any) -> list[Any]:
    """The values of all ranks, exchanged as JSON and returned on all ranks. torch's collectives for
    objects are not used: they unpickle data, and anybody who reaches Gloo's ports can send data."""
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = comm.all_gather(torch.tensor([len(content)])).flatten().tolist()
    row = torch.zeros(max(sizes), dtype=torch.uint8)
    row[: len(content)] = content
    rows = comm.all_gather(row)
    return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]


def average_buffers(model: nn.Module, comm: Comm) -> None:
    """Average the floating-point and complex buffers, such as BatchNorm's running statistics, over
    all ranks.

    Ranks train on different samples, so their statistics differ. Frameworks handle this in
    different ways: DDP copies rank 0's buffers to all ranks, Horovod and DeepSpeed do nothing.
    Averaging before each validation and checkpoint makes the model the same on all ranks.
    """
    if comm.size > 1:
        average_over_ranks(model, lambda flat: comm.all_reduce(flat, "sum"), comm.size)


def average_over_ranks(model: nn.Module, summed: Callable[[Tensor], Tensor], ranks: int) -> None:
    """Replace the floating-point and complex buffers by their means over ranks. `summed` returns
    the sum over `ranks` ranks.

    Sums are in fp64: an fp32 buffer that is equal on all ranks then keeps its value to the bit,
    even if it is a mask that holds the most negative fp32 number.
    """
    buffers = [each for each in real_views(model.buffers()) if each.is_floating_point()]
    replace_by_mean(buffers, summed, ranks, torch.float64)


def replace_by_mean(
    tensors: Sequence[Tensor],
    summed: Callable[[Tensor], Tensor],
    divisor: int,
    dtype: torch.dtype | None = None,
) -> None:
    """Replace `tensors` by their sums over ranks, divided by `divisor`. `summed` is given all
    values as one tensor [n] of `dtype` (by default, the tensors' dtype), and returns the sum of
    this tensor over ranks."""
    if not tensors:
        return
    flat = torch.cat([each.detach().reshape(-1).to(dtype or each.dtype) for each in tensors])
    parts = (summed(flat) / divisor).split([each.numel() for each in tensors])
    for each, part in zip(tensors, parts, strict=True):
        each.copy_(part.view_as(each))


def join_torch_group(rank: int, size: int, device: torch.device) -> bool:
    """Join torch's default process group; return False if this process has joined it already.

    A world of one process needs no rendezvous, and so no MASTER_ADDR.
    """
    if dist.is_initialized():
        return False
    if size == 1:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
    else:
        store = shared_store("torch", rank, size)
    # connect two ranks at their first exchange, not all pairs at the start
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=size, store=store)
    return True


def leave_torch_group() -> None:
    """Leave torch's default process group.

    torch can keep the group's threads alive after this. A Gloo thread that frees the tensors of the
    last collective acquires the GIL, which aborts the process if Python is already shutting down.
    A process that ends soon after leaving the group therefore waits, with the GIL released.
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
    """Set the store for the groups that this process joins from now on, in place of torchrun's."""
    global _store
    _store = store


def shared_store(purpose: str, rank: int, size: int) -> Any:
    """The key-value store of this world, with a new key prefix at each call.

    Without prefixes, a run would find the addresses that an earlier run in the same process has
    stored. All ranks must make the same number of calls for each `purpose`. Worlds of equal size
    must consist of the same processes, because they share prefixes.
    """
    _joins[purpose, size] += 1
    prefix = f"raysuite/{purpose}/{size}/{_joins[purpose, size]}"
    return PrefixStore(prefix, _store or _environment_store(rank, size))


@cache
def _environment_store(rank: int, size: int) -> Any:
    """The store from torchrun's environment variables. It is made once per process: if another
    launcher has set these variables, rank 0 itself serves the store, and a second store would need
    the same port."""
    store, _, _ = next(iter(rendezvous("env://", rank, size)))
    return store
