"""Decoding on the CPU, by threads of the worker or by processes of PyTorch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from raysuite.data.base import Batch, Slice
from raysuite.data.buffers import Buffers
from raysuite.data.loaders.native_ahead import InProcesses, InThreads
from raysuite.data.normalise import Normalise
from raysuite.data.prepared import Prepared, Split
from raysuite.data.rendering import Rendering
from raysuite.spec.loaders import NativeOptions


class NativeLoader:
    """Decodes by libjpeg-turbo, or Pillow; resizes by torch; normalises where that is cheapest."""

    def __init__(
        self, prepared: Prepared, split: Split, options: NativeOptions, device: torch.device
    ) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"
        self._rendering = rendering = Rendering(prepared, options.decode)
        self._dtype = _transport(options, self._on_gpu)
        self._pixels, self._values = Buffers(np.uint8), Buffers(np.float32)
        self._normalise = Normalise(rendering, device)
        self._ahead = (
            InProcesses(rendering, split, options, self._dtype, self._on_gpu)
            if options.processes
            else InThreads(rendering, split, options, self._room)
        )
        self._asked: object = None

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        """One Batch per Slice, in order. The next call takes the loader over from this one.

        Raises DataError that names the file of an unreadable image, and RunError where a
        loading process died.
        """
        self._asked = asked = object()
        loaded = self._ahead.load(slices)
        for slice_ in slices:
            if self._asked is not asked:
                raise RuntimeError("a later call of batches() has taken this loader over")
            images, labels = next(loaded)
            yield Batch(
                self._normalised(images),
                labels.to(self._device, non_blocking=True),
                slice_.real,
                slice_.of_global,
            )

    def close(self) -> None:
        """End threads or processes, and close the files."""
        self._ahead.close()

    def _room(self, count: int) -> Tensor:
        """Memory for the images of a batch that is being loaded."""
        shape = self._rendering.shape(count, self._dtype)
        if self._on_gpu:  # torch keeps pinned memory for use again
            return torch.empty(shape, dtype=self._dtype, pin_memory=True)
        buffers = self._pixels if self._dtype == torch.uint8 else self._values
        return torch.from_numpy(buffers.take(shape))

    def _normalised(self, images: Tensor) -> Tensor:
        if images.dtype == torch.float32:
            return images.to(self._device, non_blocking=True)
        return self._normalise.images(images)


def _transport(options: NativeOptions, on_gpu: bool) -> torch.dtype:
    if options.transport == "auto":
        return torch.float32 if options.threads and not on_gpu else torch.uint8
    return torch.uint8 if options.transport == "uint8" else torch.float32
