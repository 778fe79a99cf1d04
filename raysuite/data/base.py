"""The protocol of all loaders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Sample = bytes | NDArray[np.uint8]
"""What a sample is before it is loaded: the bytes of a JPEG or PNG, or pixels [H, W, C]."""


@dataclass(frozen=True)
class Slice:
    """One rank's samples of one micro-batch.

    ids: [b] sample indices into the data set, int64. The last `len(ids) - real` are padding:
    present only so that a rank with nothing left can still take part in the step.
    """

    ids: NDArray[np.int64]
    real: int
    """Samples that count, at the front of `ids`."""
    of_global: float
    """Samples that count in the whole global batch, over all ranks and micro-batches; where samples
    have weights (of their classes, or of their number of tokens), the sum of theirs. The loss is
    divided by it."""
    draw: tuple[int, int] | None = None
    """Seed and epoch from which the augmentation of each sample is drawn; None: as validation
    sees it."""


@dataclass(frozen=True)
class Batch:
    """Images [b, C, H, W] fp32, normalised, and labels [b] int64; or the inputs and targets of
    another task, each a tensor, a tuple or a dictionary of tensors. On the worker's device."""

    images: Any
    labels: Any
    real: int
    """Samples that count; the others, at the end, are padding and have weight 0."""
    of_global: float
    """As in Slice."""


class Loader(Protocol):
    """Decodes exactly the given samples, in the given order."""

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        """One Batch per Slice, in order. A later call ends the iterator of an earlier one.

        Raises DataError that names the file of an unreadable image, and RunError where a process
        that loads died.
        """

    def close(self) -> None:
        """Free processes, threads and device memory."""


class LatestCall:
    """Lets the latest call of a loader's `batches` go on, and no earlier one."""

    def __init__(self) -> None:
        self._call: object = None

    def each(self, slices: Sequence[Slice]) -> Iterator[Slice]:
        """The slices in turn. Raises RuntimeError where there is a later call by then."""
        self._call = call = object()
        for slice_ in slices:
            if self._call is not call:
                raise RuntimeError("a later call of batches() has taken this loader over")
            yield slice_
