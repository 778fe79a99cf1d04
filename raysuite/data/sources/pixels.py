"""Images that are bare pixels: MNIST's IDX files and CIFAR-10's batches.

Each image is read from its place, through the system's page cache that all processes share. A
mapping would save the copy of some kilobytes, and end the process with SIGBUS where a file is cut
short or its disk fails.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError
from raysuite.layouts import cifar, idx
from raysuite.spec.datasets import CIFAR_FILES, IDX_FILES


class IdxSource:
    """A file of images and one of labels."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        images, labels = (prepared.files / name for name in IDX_FILES[split])
        _, self._rows, self._columns = idx.shape_of(images, labels)
        self._images, self._labels = _File(images), _File(labels)

    def read(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        size = self._rows * self._columns
        pixels = self._images.read(self._offset(sample), size)
        (label,) = self._labels.read(idx.head_size(1) + sample, 1)
        image = np.frombuffer(pixels, np.uint8).reshape(self._rows, self._columns, 1)
        return image, label

    def place(self, sample: int) -> str:
        return f"{self._images.path} at byte {self._offset(sample)}"

    def file(self, sample: int) -> str:
        return str(self._images.path)

    def close(self) -> None:
        self._images.close()
        self._labels.close()

    def _offset(self, sample: int) -> int:
        return idx.head_size(3) + sample * self._rows * self._columns


class CifarSource:
    """Batches of records: a label, then the red, the green and the blue plane."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        paths = [prepared.files / name for name in CIFAR_FILES["binary"][split]]
        counts = [cifar.records(path) for path in paths]
        self._starts = list(accumulate(counts, initial=0))
        self._files = [_File(path) for path in paths]

    def read(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        file, offset = self._where(sample)
        record = np.frombuffer(file.read(offset, cifar.RECORD), np.uint8)
        planes = record[1:].reshape(3, cifar.SIDE, cifar.SIDE)
        return np.ascontiguousarray(planes.transpose(1, 2, 0)), int(record[0])

    def place(self, sample: int) -> str:
        file, offset = self._where(sample)
        return f"{file.path} at byte {offset}"

    def file(self, sample: int) -> str:
        return str(self._where(sample)[0].path)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _where(self, sample: int) -> tuple[_File, int]:
        batch = bisect_right(self._starts, sample) - 1
        return self._files[batch], (sample - self._starts[batch]) * cifar.RECORD


class _File:
    """A file of which any part can be read, from several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes. Raises DataError where the file ends before."""
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size:
            raise DataError(f"{self.path} at byte {offset}: the file was cut short; copy it again")
        return data

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
