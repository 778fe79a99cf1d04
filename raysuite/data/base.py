"""The protocol of all loaders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Loaded = TypeVar("Loaded")
Sample = bytes | NDArray[np.uint8]
"""A sample before it is decoded: the bytes of an image file, or pixels [H, W, C]."""


@dataclass(frozen=True)
class Slice:
    """One rank's samples of one micro-batch.

    ids: [b] sample indices into the data set, int64. The last `len(ids) - real` samples are
    padding, so that a rank without samples can still take part in the step.
    """

    ids: NDArray[np.int64]
    real: int
    """The number of samples before the padding."""
    of_global: float
    """The divisor of the loss: the number of samples in the global batch, over all ranks and
    micro-batches, without padding. If samples are weighted (by class or by number of tokens), it is
    the sum of their weights."""
    draw: tuple[int, int] | None = None
    """(seed, epoch) of the samples' augmentation; None in validation, which has no augmentation."""


@dataclass(frozen=True)
class Batch:
    """The loaded samples of one Slice, on the worker's device."""

    images: Any
    """Classification: [b, C, H, W] normalised fp32. Other tasks: the inputs, as a tensor, or as a
    tuple or dictionary of tensors."""
    labels: Any
    """Classification: [b] int64. Other tasks: the targets, as a tensor, tuple or dictionary."""
    real: int
    """The number of samples before the padding, which is at the end and has weight 0."""
    of_global: float
    """The divisor of the loss: see `Slice.of_global`."""


class Loader(Protocol):
    """Decodes exactly the given samples, in the given order."""

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        """Yield one Batch per Slice, in order. A later call ends the iterator of an earlier call.

        Raises DataError with the file's name if an image is unreadable, RunError if a process died.
        """

    def close(self) -> None:
        """Free processes, threads and device memory."""


class LatestCall:
    """Stops earlier calls of a loader's `batches`: only the latest call continues."""

    def __init__(self) -> None:
        self._call: object = None

    def each(self, slices: Sequence[Slice]) -> Iterator[Slice]:
        """Yield the slices in order. Raises RuntimeError if `each` was called again meanwhile."""
        self._call = call = object()
        for slice_ in slices:
            if self._call is not call:
                raise RuntimeError("this iterator has ended, because batches() was called again")
            yield slice_


def prefetched(
    slices: Sequence[Slice], pool: Executor, load: Callable[[Slice], Loaded], ahead: int
) -> Iterator[Loaded]:
    """The results of `load` for each slice, in order. While the result of one slice is awaited,
    `pool` also loads the next `ahead` slices."""
    pending: deque[Future[Loaded]] = deque()
    coming = iter(slices)
    try:
        for _ in slices:
            for each in islice(coming, 1 + ahead - len(pending)):
                pending.append(pool.submit(load, each))
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
