"""A split's decoded images as four files that any number of processes map."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysuite.data.base import Sample
from raysuite.data.formats import Source
from raysuite.data.pixels import decode, size_of
from raysuite.data.prepared import Prepared
from raysuite.errors import DataError

_PIXELS = "pixels.bin"


class Decoded:
    """The images of a folder that `Decoding` wrote; `[sample]` is one as [H, W, C]."""

    def __init__(self, folder: Path, channels: int) -> None:
        self.labels: NDArray[np.int64] = np.load(folder / "labels.npy", mmap_mode="r")
        self.offsets: NDArray[np.int64] = np.load(folder / "offsets.npy", mmap_mode="r")
        """[n] where an image's pixels begin; -1: it could not be decoded."""
        self.sizes: NDArray[np.int64] = np.load(folder / "sizes.npy", mmap_mode="r")
        """[n, 2] width and height."""
        # copied where written to, which nobody does: torch takes no array that is read-only
        self.pixels: NDArray[np.uint8] = np.memmap(folder / _PIXELS, np.uint8, "c")
        self.channels = channels

    def __getitem__(self, sample: int) -> NDArray[np.uint8]:
        (width, height), offset = self.sizes[sample].tolist(), int(self.offsets[sample])
        shape = (height, width, self.channels)
        return self.pixels[offset : offset + height * width * self.channels].reshape(shape)

    def stacked(self) -> NDArray[np.uint8] | None:
        """All images as one array [n, H, W, C], where they have one size and all are there."""
        if (self.offsets < 0).any() or (self.sizes != self.sizes[0]).any():
            return None
        width, height = self.sizes[0].tolist()
        return self.pixels.reshape(-1, height, width, self.channels)


class Decoding:
    """Decodes a split into a folder, with a thread per core, its pixels as the reference has them.

    Images that cannot be read are marked and left out. The sizes of all images are read first,
    so that the room that is needed is known, and taken, before anything is decoded.
    """

    def __init__(self, source: Source, prepared: Prepared, samples: int) -> None:
        self._source, self._prepared, self._samples = source, prepared, samples
        self._sizes: NDArray[np.int64] = np.zeros((samples, 2), np.int64)
        self._labels = np.zeros(samples, np.int64)

    def size(self) -> int:
        """Bytes of the files."""
        if self._prepared.exact:  # others are errors
            self._sizes[:] = self._prepared.facts.image_size
        else:
            self._each(self._measure)
        # two numbers of a size, an offset and a label per image; and the heads of the files
        return int(self._bytes().sum()) + 32 * self._samples + 4096

    def write(self, folder: Path) -> None:
        """Write the files, after `size` was called. Raises OSError where the disk is full."""
        sizes = self._bytes()
        offsets = np.cumsum(sizes) - sizes
        total = max(1, int(sizes.sum()))  # an empty file cannot be mapped
        with (folder / _PIXELS).open("wb") as file:
            # taken now: a process that maps a hole on a full disk is killed when it writes there
            os.posix_fallocate(file.fileno(), 0, total)
        pixels = np.memmap(folder / _PIXELS, np.uint8, "r+")

        def put(sample: int, image: Sample, label: int) -> None:
            decoded = decode(image, self._prepared.facts.channels, self._source.place(sample))
            size_fits = size_of(decoded, "") == tuple(self._sizes[sample].tolist())
            if not size_fits or not 0 <= label < self._prepared.facts.classes:
                raise DataError("its size or its class is not the set's")
            start = int(offsets[sample])
            pixels[start : start + decoded.size] = decoded.ravel()
            self._labels[sample] = label

        bad = ~self._each(put)
        pixels.flush()
        offsets[bad] = -1
        np.save(folder / "offsets.npy", offsets)
        np.save(folder / "sizes.npy", self._sizes)
        np.save(folder / "labels.npy", self._labels)

    def _measure(self, sample: int, image: Sample, label: int) -> None:
        self._sizes[sample] = size_of(image, self._source.place(sample))

    def _bytes(self) -> NDArray[np.int64]:
        return self._sizes[:, 0] * self._sizes[:, 1] * self._prepared.facts.channels

    def _each(self, work: Callable[[int, Sample, int], None]) -> NDArray[np.bool_]:
        """Which samples could be read and worked on: [n]."""
        whole = np.zeros(self._samples, np.bool_)

        def do(samples: NDArray[np.int64]) -> None:
            for sample in samples.tolist():
                try:
                    work(sample, *self._source.read(sample))
                    whole[sample] = True
                except DataError:  # said when it is asked for
                    pass

        cores = len(os.sched_getaffinity(0))
        parts = np.array_split(np.arange(self._samples), 8 * cores)
        with ThreadPoolExecutor(cores, thread_name_prefix="raysuite-decoding") as pool:
            list(pool.map(do, parts))
        return whole
