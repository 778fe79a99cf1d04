"""Decode the whole set once, into memory that all workers of a node share."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysuite.data.base import Batch, LatestCall, Sample, Slice, prefetched
from raysuite.data.formats import Source, open_source
from raysuite.data.node_share import NodeShare, found_once
from raysuite.data.normalise import Normalise
from raysuite.data.pixels import cut_out, decode, size_of
from raysuite.data.prepared import Prepared, Split
from raysuite.data.rendering import Rendering, fit_into
from raysuite.data.transforms import transformed
from raysuite.data.views import Views, views
from raysuite.errors import DataError
from raysuite.spec.loaders import MemoryOptions

_PIXELS = "pixels.bin"


class Decoded:
    """The images that `Decoding` wrote to a folder; `self[sample]` is one image [H, W, C]."""

    def __init__(self, folder: Path, channels: int) -> None:
        self.labels: NDArray[np.int64] = np.load(folder / "labels.npy", mmap_mode="r")
        self.offsets: NDArray[np.int64] = np.load(folder / "offsets.npy", mmap_mode="r")
        """[n] byte offset of each image's first pixel; -1 if the image could not be decoded."""
        self.sizes: NDArray[np.int64] = np.load(folder / "sizes.npy", mmap_mode="r")
        """[n, 2] width and height."""
        # mode "c" (copy on write) only because torch warns of read-only arrays
        self.pixels: NDArray[np.uint8] = np.memmap(folder / _PIXELS, np.uint8, "c")
        self.channels = channels

    def __getitem__(self, sample: int) -> NDArray[np.uint8]:
        (width, height), first = self.sizes[sample].tolist(), self.offsets[sample]
        shape = (height, width, self.channels)
        return self.pixels[first : first + math.prod(shape)].reshape(shape)

    def stacked(self) -> NDArray[np.uint8] | None:
        """All images as one array [n, H, W, C], or None if sizes differ or an image is missing."""
        if (self.offsets < 0).any() or (self.sizes != self.sizes[0]).any():
            return None
        width, height = self.sizes[0].tolist()
        return self.pixels.reshape(-1, height, width, self.channels)


class Decoding:
    """Decodes a split into files in a folder, with the reference decoder and one thread per core.

    Unreadable images are marked and left out. The sizes of all images are read first, so that
    memory can be reserved before decoding.
    """

    def __init__(self, source: Source, prepared: Prepared, samples: int) -> None:
        self._source, self._prepared, self._samples = source, prepared, samples
        self._sizes: NDArray[np.int64] = np.zeros((samples, 2), np.int64)
        self._labels = np.zeros(samples, np.int64)

    def size(self) -> int:
        """Upper bound of the total size, in bytes, of the files that `write` writes."""
        if self._prepared.exact:  # images of other sizes are errors
            self._sizes[:] = self._prepared.facts.image_size
        else:
            self._each(self._measure)
        # four int64 per image (width, height, offset, label), and the headers of the .npy files
        return int(self._bytes().sum()) + 32 * self._samples + 4096

    def write(self, folder: Path) -> None:
        """Write the files; `size` must be called before. Raises OSError if the disk is full."""
        sizes = self._bytes()
        offsets = np.cumsum(sizes) - sizes
        total = max(1, int(sizes.sum()))  # empty files cannot be mapped
        with (folder / _PIXELS).open("wb") as file:
            # allocate now: writing to a mapped sparse file on a full disk kills the process
            os.posix_fallocate(file.fileno(), 0, total)
        pixels = np.memmap(folder / _PIXELS, np.uint8, "r+")

        def put(sample: int, image: Sample, label: int) -> None:
            decoded = decode(image, self._prepared.facts.channels, self._source.place(sample))
            size_fits = size_of(decoded, "") == tuple(self._sizes[sample].tolist())
            if not size_fits or not 0 <= label < self._prepared.facts.classes:
                raise DataError("the image's size or class does not match the data set")
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
        """Call `work` for each sample; return [n] bool, False where reading or `work` failed."""
        whole = np.zeros(self._samples, np.bool_)

        def do(samples: NDArray[np.int64]) -> None:
            for sample in samples.tolist():
                try:
                    work(sample, *self._source.read(sample))
                    whole[sample] = True
                except DataError:  # the error is raised when a batch needs the image
                    pass

        cores = len(os.sched_getaffinity(0))
        parts = np.array_split(np.arange(self._samples), 8 * cores)
        with ThreadPoolExecutor(cores, thread_name_prefix="raysuite-decoding") as pool:
            list(pool.map(do, parts))
        return whole


_Cut = tuple[Tensor, Tensor]
"""Images [b, size, size, C] and labels [b], not yet copied to the device."""


class MemoryLoader:
    """Cuts batches out of decoded images, in threads that prefetch.

    The first worker of a node decodes the split, on all cores that it may use, while the other
    workers wait. Images keep their size, and views are cut from them as in the loader `native`. An
    image that cannot be decoded is left out; its error is raised when a batch needs the image.
    """

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        options: MemoryOptions,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        self._prepared = prepared
        self._rendering = Rendering(prepared, "exact")
        self._normalise = Normalise(self._rendering, device, channels_last)
        self._source = open_source(prepared, split)
        decoding = Decoding(self._source, prepared, prepared.samples(split))
        key = key_of(self._source, prepared, split)
        self._share = NodeShare(key, decoding.size, decoding.write)
        self._images = Decoded(self._share.path, prepared.facts.channels)
        self._stack = None if prepared.resizes else self._images.stacked()
        threads = options.threads
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="raysuite-memory")
        self._ahead = max(options.prefetch, threads) if threads else 0
        self._call = LatestCall()

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        loaded: Iterator[_Cut] = map(self._cut, slices)
        if self._ahead:
            loaded = prefetched(slices, self._pool, self._cut, self._ahead)
        for slice_ in self._call.each(slices):
            yield self._normalise.batch(*next(loaded), slice_)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._share.close()
        self._source.close()

    def _cut(self, slice_: Slice) -> _Cut:
        pixels = self._normalise.room(len(slice_.ids))
        return pixels, self._normalise.pinned(self._cut_into(pixels.numpy(), slice_))

    def _cut_into(self, cut: NDArray[np.uint8], slice_: Slice) -> NDArray[np.int64]:
        ids, images = slice_.ids, self._images
        if (images.offsets[ids] < 0).any():
            return self._rendering.write(self._source, slice_, cut)
        seen = views(self._prepared, ids, images.sizes[ids], slice_.draw)
        labels = images.labels[ids]
        if self._stack is not None:
            cut[:] = shifted(self._stack[ids], seen)
        else:
            for row, sample in enumerate(ids.tolist()):
                fit_into(*cut_out(images[sample], seen.boxes[row]), cut[row])
                if seen.flips[row]:
                    cut[row] = cut[row, :, ::-1].copy()
        if self._prepared.data.transform is not None:
            for row, sample in enumerate(ids.tolist()):
                place = self._source.place(sample)
                cut[row] = transformed(self._prepared, cut[row], sample, slice_.draw, place)
        return labels


def shifted(images: NDArray[np.uint8], seen: Views) -> NDArray[np.uint8]:
    """Cut the views out of all images [b, H, W, C] at once; the views must have the images' size.
    Images are shifted by whole pixels, with zeros in the uncovered border, and mirrored where
    `seen.flips` is True."""
    corners = seen.boxes[:, :2].astype(np.int64)
    reach = int(np.abs(corners).max(initial=0))
    if reach:
        count, height, width, _ = images.shape
        padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
        rows = corners[:, 1, None] + reach + np.arange(height)
        columns = corners[:, 0, None] + reach + np.arange(width)
        images = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    if seen.flips.any():
        images[seen.flips] = images[seen.flips, :, ::-1]
    return images


def key_of(source: Source, prepared: Prepared, split: Split) -> str:
    """A key that changes if the options or the split's files (names, sizes, times) change.

    One process of the node reads the files' sizes and times, and waiting processes use its key.
    """
    asked = (split, prepared.form, prepared.facts, prepared.data.model_dump(), prepared.listing)

    def digest(states: Iterator[object]) -> str:
        told = hashlib.sha256()
        for each in itertools.chain([asked], states):
            told.update(repr(each).encode("utf-8", "surrogateescape"))
        return f"{split}-{told.hexdigest()[:24]}"

    return found_once(digest(iter(())), lambda: digest(_states(source, prepared, split)))


def _states(source: Source, prepared: Prepared, split: Split) -> Iterator[object]:
    files = dict.fromkeys(source.file(sample) for sample in range(prepared.samples(split)))
    for file in files:
        if file is None:  # a user's own set: use the file of its module
            file = getattr(sys.modules.get(prepared.data.name.partition(":")[0]), "__file__", None)
        try:
            found = os.stat(file) if file else None
        except OSError:  # a missing file is reported when it is read
            found = None
        yield file, found and (found.st_size, found.st_mtime_ns)
