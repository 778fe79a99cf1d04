"""Convert a batch's pixels to the network's input, on the worker's device."""

from __future__ import annotations

import math
import sys
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysuite.data.base import Batch, Slice
from raysuite.data.rendering import Rendering

Kind = TypeVar("Kind", np.uint8, np.float32)

_KEPT = 8
"""Largest number of arrays in a pool; a full pool drops its oldest array."""


def _references(arrays: list[NDArray[Kind]]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


_UNUSED = _references([np.empty(1, np.uint8)])[0]
"""The reference count of an array that only the pool uses; it depends on the interpreter."""


class Buffers(Generic[Kind]):
    """A pool of arrays of one dtype, not thread-safe. An array is reused once only the pool refers
    to it.

    Without a pool, the allocator returns large arrays (such as 64 ImageNet images) to the kernel.
    Each batch then gets new memory, whose page faults take longer than normalising.
    """

    def __init__(self, dtype: type[Kind]) -> None:
        self._dtype: type[Kind] = dtype
        self._arrays: list[NDArray[Kind]] = []

    def take(self, shape: tuple[int, ...]) -> NDArray[Kind]:
        """An array of `shape` with undefined content."""
        size = math.prod(shape)
        for place, references in enumerate(_references(self._arrays)):
            if references == _UNUSED and self._arrays[place].size >= size:
                return self._arrays[place][:size].reshape(shape)
        array = np.empty(size, self._dtype)
        if len(self._arrays) == _KEPT:  # all arrays are in use or too small
            self._arrays.pop(0)
        self._arrays.append(array)
        return array.reshape(shape)


class Normalise:
    """Makes Batches on `device`. If the device is a GPU, the pixels are moved to it and normalised
    there; otherwise the CPU normalises them. `channels_last`: whether images on a GPU get this
    memory format. Only one thread may call `batch` and `images`."""

    def __init__(
        self, rendering: Rendering, device: torch.device, channels_last: bool = False
    ) -> None:
        self._rendering = rendering
        self._values = Buffers(np.float32)
        self._device, self._on_gpu = device, device.type == "cuda"
        self._strides = torch.channels_last if channels_last else torch.contiguous_format
        self._mean, self._scale = (
            torch.from_numpy(each).to(device) for each in rendering.constants
        )

    def room(self, count: int) -> Tensor:
        """Uninitialised pixels [count, size, size, C], uint8; pinned if the device is a GPU."""
        shape = self._rendering.shape(count, torch.uint8)
        return torch.empty(shape, dtype=torch.uint8, pin_memory=self._on_gpu)

    def pinned(self, values: NDArray[np.int64]) -> Tensor:
        """The labels as a tensor, in pinned memory for a GPU."""
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        return tensor.pin_memory() if self._on_gpu else tensor

    def batch(self, pixels: Tensor, labels: Tensor, slice_: Slice) -> Batch:
        """A Batch of pixels [b, size, size, C] from `room`, and labels [b] from `pinned`."""
        moved = labels.to(self._device, non_blocking=True)
        return Batch(self.images(pixels), moved, slice_.real, slice_.of_global)

    def images(self, pixels: Tensor) -> Tensor:
        """Normalise [b, size, size, C] uint8 on the CPU to [b, C, size, size] on the device."""
        return self._by_gpu(pixels) if self._on_gpu else self._by_cpu(pixels.numpy())

    def _by_cpu(self, pixels: NDArray[np.uint8]) -> Tensor:
        values = self._values.take(self._rendering.shape(len(pixels), torch.float32))
        self._rendering.normalise(pixels, values)
        return torch.from_numpy(values)

    def _by_gpu(self, pixels: Tensor) -> Tensor:
        moved = pixels.to(self._device, non_blocking=True).permute(0, 3, 1, 2)
        floats = moved.to(torch.float32, memory_format=self._strides)
        return floats.sub_(self._mean).mul_(self._scale)
