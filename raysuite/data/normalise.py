"""Pixels of a batch -> what the network takes, on the worker's device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysuite.data.base import Batch, Slice
from raysuite.data.buffers import Buffers
from raysuite.data.prepared import Prepared
from raysuite.data.rendering import Rendering


class Normalise:
    """Makes Batches on `device`; on a GPU it is the GPU that normalises. Not safe from several
    threads."""

    def __init__(self, prepared: Prepared, device: torch.device) -> None:
        self._rendering = Rendering(prepared, "exact")
        self._values = Buffers(np.float32)
        self._device, self._on_gpu = device, device.type == "cuda"
        constants = self._rendering.constants
        self._mean, self._scale = (torch.from_numpy(each).to(device) for each in constants)

    def batch(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64], slice_: Slice) -> Batch:
        """pixels: [b, size, size, C]; labels: [b]."""
        return Batch(self._images(pixels), self._moved(labels), slice_.real, slice_.of_global)

    def _images(self, pixels: NDArray[np.uint8]) -> Tensor:
        """[b, C, size, size] fp32."""
        if not self._on_gpu:
            values = self._values.take(self._rendering.shape(len(pixels), torch.float32))
            self._rendering.normalise(pixels, values)
            return torch.from_numpy(values)
        moved = self._moved(pixels).permute(0, 3, 1, 2)
        floats = moved.to(torch.float32, memory_format=torch.contiguous_format)
        return floats.sub_(self._mean).mul_(self._scale)

    def _moved(self, values: NDArray[np.uint8] | NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        if self._on_gpu:
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)
