"""Measure the gain of each optimisation in the loader `native`, which variants add one by one.

Each variant makes normalised values from bytes in memory, in one thread; reading is not timed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from raysuite.data import Prepared, Slice, permutation
from raysuite.data.decoders import cut_from, decode_whole, resized_from
from raysuite.data.formats import open_source
from raysuite.data.pixels import cut_out, decode, fit
from raysuite.data.reading import Read, read
from raysuite.data.rendering import Rendering, fit_into

_Way = Callable[[Read, NDArray[np.float32]], None]


class Step:
    """One variant: it makes values from the bytes of `batches`, which are the same in each run."""

    def __init__(self, batches: list[Read], way: _Way, shape: tuple[int, ...]) -> None:
        self._batches, self._way = batches, way
        self._out = np.empty(shape, np.float32)

    def run(self, images: int, epoch: int) -> int:
        """Process batches until at least `images` images are done; return their number."""
        done = 0
        for got in self._batches:
            if done < images:
                self._way(got, self._out[: len(got.samples)])
                done += len(got.samples)
        return done

    def close(self) -> None:
        """Do nothing: there are no resources to free."""


def steps(prepared: Prepared, images: int, batch: int) -> dict[str, Step]:
    """The variants in order, by name; each adds one optimisation to the variant before it."""
    source = open_source(prepared, "train")
    order = permutation(prepared.samples("train"), 0, 0)[:images]
    starts = range(0, len(order), batch)
    slices = [Slice(order[at : at + batch], 0, 0, draw=(0, 0)) for at in starts]
    batches = [read(source, prepared, slice_) for slice_ in slices]
    source.close()
    rendering = Rendering(prepared, "exact")
    size, channels = prepared.facts.image_size, prepared.facts.channels
    mean, scale = map(torch.from_numpy, rendering.constants)

    def at_once(pixels: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Normalise the whole batch into newly allocated memory; `out` is not used."""
        floats = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        floats.to(torch.float32, memory_format=torch.contiguous_format).sub_(mean).mul_(scale)

    def way(
        cut: Callable[..., tuple[NDArray[np.uint8], tuple[float, float, float, float]]],
        resized: Callable[..., None],
        normalise: Callable[[NDArray[np.uint8], NDArray[np.float32]], None],
    ) -> _Way:
        def work(got: Read, out: NDArray[np.float32]) -> None:
            pixels = np.empty((len(got.samples), size, size, channels), np.uint8)
            for row, sample in enumerate(got.samples):
                resized(*cut(sample, channels, got.views.boxes[row], "an image"), pixels[row])
                if got.views.flips[row]:
                    pixels[row] = pixels[row, :, ::-1].copy()
            normalise(pixels, out)

        return work

    def by_pillow(cut: NDArray[np.uint8], part: tuple[float, ...], out: NDArray[np.uint8]) -> None:
        out[...] = fit(cut, part, size)  # type: ignore[arg-type]

    def reference(sample, channels, box, place):  # type: ignore[no-untyped-def]
        return cut_out(decode(sample, channels, place), box)

    def turbo(sample, channels, box, place):  # type: ignore[no-untyped-def]
        return cut_out(decode_whole(sample, channels, place), box)

    ways = {
        "Pillow decodes and resizes": way(reference, by_pillow, at_once),
        "libjpeg-turbo without Pillow": way(turbo, by_pillow, at_once),
        "the view alone is decoded": way(cut_from, by_pillow, at_once),
        "torch resizes": way(cut_from, fit_into, at_once),
        "normalised image by image, into memory used again": way(
            cut_from, fit_into, rendering.normalise
        ),
    }
    fitted = np.empty((size, size, channels), np.uint8)

    def row_by_row(got: Read, out: NDArray[np.float32]) -> None:
        for row, sample in enumerate(got.samples):
            flip = bool(got.views.flips[row])
            box = got.views.boxes[row]
            if not resized_from(sample, box, flip, fitted, "an image"):  # a CPU without AVX2
                fit_into(*cut_from(sample, channels, box, "an image"), fitted)
            rendering.normalise(fitted[None], out[row : row + 1])

    ways["each row resized as it is decoded"] = row_by_row
    shape = rendering.shape(batch, torch.float32)
    return {name: Step(batches, each, shape) for name, each in ways.items()}
