"""Write the pixels or normalised values of a Slice into given memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raysuite.compiled import loaded
from raysuite.data.base import Slice
from raysuite.data.decoders import cut_from, resized_from, shrinks, shrunk_from
from raysuite.data.formats import Source
from raysuite.data.pixels import Part, copy_by_channel, fit, whole
from raysuite.data.prepared import Prepared
from raysuite.data.reading import read
from raysuite.data.transforms import transformed
from raysuite.spec.datasets import cache_dir
from raysuite.spec.loaders import Decode

_resize: Any = torch.ops.aten._upsample_bilinear2d_aa.out
"""The operator that `torch.nn.functional.interpolate(mode="bilinear", antialias=True)` calls. It
has an argument for the output. For uint8, it uses weights of 15 bits; Pillow uses 22."""


def fit_into(cut: NDArray[np.uint8], part: Part, out: NDArray[np.uint8]) -> None:
    """Write `fit(cut, part, size)` to `out` [size, size, C]; values may differ by 1 from Pillow's.

    Pillow resizes parts of `cut`, because torch's operator has no argument for a part.
    """
    size = len(out)
    if cut.shape[:2] == (size, size) or part != whole(cut):
        out[...] = fit(cut, part, size)
        return
    if not cut.flags.writeable:  # torch needs writable arrays
        cut = cut.copy()
    _resize(_channels_first(cut), [size, size], False, None, None, out=_channels_first(out))


@cache
def _library() -> Any:
    """The function `raysuite_normalise` of normalise.c; None if it cannot be compiled. NumPy gives
    the same bits, but takes three times as long."""
    source = Path(__file__).with_name("normalise.c")
    library = loaded(source, cache_dir(), "-O3", "-ffp-contract=off")
    if library is None:
        return None
    normalise = library.raysuite_normalise
    normalise.restype = None
    normalise.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 3]
    normalise.argtypes += [ctypes.c_void_p] * 3
    return normalise


def _channels_first(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """A view [1, C, H, W] of the same memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)


@dataclass(frozen=True)
class Rendering:
    """Renders views into memory. A Rendering is small, can be pickled, and is thread-safe."""

    prepared: Prepared
    decode: Decode

    def shape(self, count: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
        """The shape of `count` views: [count, size, size, C] uint8, [count, C, size, size] fp32."""
        channels, size = self.prepared.facts.channels, self.prepared.facts.image_size
        if dtype == torch.uint8:
            return (count, size, size, channels)
        return (count, channels, size, size)

    def write(
        self, source: Source, slice_: Slice, out: NDArray[np.uint8] | NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Write the views of `slice_` to `out`, and return their labels [b].

        out: [b, size, size, C] uint8, or [b, C, size, size] fp32, normalised. Raises the errors of
        `read` and `decode`.
        """
        got = read(source, self.prepared, slice_)
        channels, size = self.prepared.facts.channels, self.prepared.facts.image_size
        fitted = np.empty((size, size, channels), np.uint8)
        for row, (number, sample) in enumerate(zip(slice_.ids.tolist(), got.samples, strict=True)):
            box, flip = got.views.boxes[row], bool(got.views.flips[row])
            view, place = out[row] if out.dtype == np.uint8 else fitted, source.place(number)
            shrunk = self.decode == "scaled" and shrinks(box, size)
            done = not shrunk and resized_from(sample, box, flip, view, place)
            if shrunk:
                fit_into(*shrunk_from(sample, channels, box, size, place), view)
            elif not done:
                fit_into(*cut_from(sample, channels, box, place), view)
            if flip and not done:
                copy_by_channel(view[:, ::-1].copy(), view)
            shown = transformed(self.prepared, view, number, slice_.draw, place)
            if out.dtype != np.uint8:
                self._normalise(shown, out[row])
            elif shown is not view:
                copy_by_channel(shown, view)
        return got.labels

    def normalise(self, pixels: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Write (x - 255 mean) * (1 / (255 std)), for each x in `pixels` [b, H, W, C], to `out`
        [b, C, H, W]."""
        for image, values in zip(pixels, out, strict=True):
            self._normalise(image, values)

    def _normalise(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> None:
        shift, scale = self.constants
        if image.flags.c_contiguous and values.flags.c_contiguous and _library() is not None:
            arrays = (each.ctypes.data for each in (shift, scale, values))
            _library()(image.ctypes.data, *image.shape, *arrays)
            return
        # One channel at a time, so that its values stay in the CPU cache.
        for channel, plane in enumerate(values):
            np.copyto(plane, image[:, :, channel])
            plane -= shift[channel]
            plane *= scale[channel]

    @cached_property
    def constants(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """255 mean and 1 / (255 std): [C, 1, 1] each."""
        mean, std = (
            np.array(values, np.float32).reshape(-1, 1, 1) * np.float32(255)
            for values in (self.prepared.mean, self.prepared.std)
        )
        return mean, np.float32(1) / std
