"""Memory for batches that is used again once nobody holds the batch any more."""

from __future__ import annotations

import math
import sys
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Kind = TypeVar("Kind", np.uint8, np.float32)

_KEPT = 8
"""Arrays that are kept for use; those of more batches at once are freed like any other."""


def _references(arrays: list[NDArray[Kind]]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


_UNUSED = _references([np.empty(1, np.uint8)])[0]
"""References to an array that only the list knows; interpreters count differently."""


class Buffers(Generic[Kind]):
    """Arrays of one type, handed out again when every view of them is gone.

    The allocator returns the memory of a batch of 64 ImageNet images to the kernel: each batch
    would be fresh memory, whose page faults take longer than normalising it. Not thread-safe.
    """

    def __init__(self, dtype: type[Kind]) -> None:
        self._dtype: type[Kind] = dtype
        self._arrays: list[NDArray[Kind]] = []

    def take(self, shape: tuple[int, ...]) -> NDArray[Kind]:
        """An array of `shape` with any content."""
        size = math.prod(shape)
        for place, references in enumerate(_references(self._arrays)):
            if references == _UNUSED and self._arrays[place].size >= size:
                return self._arrays[place][:size].reshape(shape)
        array = np.empty(size, self._dtype)
        if len(self._arrays) == _KEPT:  # for ones of another size, or of batches that are kept
            self._arrays.pop(0)
        self._arrays.append(array)
        return array.reshape(shape)
