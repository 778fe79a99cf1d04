"""MNIST's IDX files: http://yann.lecun.com/exdb/mnist, section "file formats"."""

from __future__ import annotations

import gzip
import math
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysuite.data.cache import converted
from raysuite.data.findings import Listed, Part, Target
from raysuite.data.formats import base
from raysuite.data.formats.base import Counts, OpenFile, files_of, files_to_check
from raysuite.data.prepared import Prepared, Split, prepared_of
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import IDX_FILES, SPLITS, DatasetFacts, Format

_FOLDERS = (".", "raw", "MNIST/raw")
"""Folders below the set's folder in which the files may be: torchvision uses MNIST/raw."""
_BYTES = 0x08
"""The type code of unsigned bytes."""
CLASSES = tuple(str(digit) for digit in range(10))

Files = dict[str, tuple[Path, Path]]
"""Split -> the file of its images and the file of its labels."""


def find(data: DataOptions) -> Files:
    """The four files, plain or .gz. Raises DataError, which names missing files."""
    found = files_of(data, _FOLDERS, [name for pair in IDX_FILES.values() for name in pair], ".gz")
    return {split: (found[images], found[labels]) for split, (images, labels) in IDX_FILES.items()}


def count(data: DataOptions) -> Counts:
    """The number of images in each split, from the headers. Raises the errors of `shape_of`."""
    counts = {split: shape_of(*files)[0] for split, files in find(data).items()}
    return Counts(counts["train"], counts["val"], CLASSES)


def shape_of(images: Path, labels: Path) -> tuple[int, int, int]:
    """The number of images in a split, and of rows and columns in each image. Raises the errors of
    `shape`, and DataError if a number is 0 or if the number of labels is not that of images."""
    many, rows, columns = shape(images, 3)
    (labelled,) = shape(labels, 1)
    if many != labelled:
        raise DataError(
            f"{images} has {many} images, but {labels} has {labelled} labels; copy both again"
        )
    if not many or not rows or not columns:
        raise DataError(f"{images}: {many} images of {rows} x {columns} pixels; copy it again")
    return many, rows, columns


def shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """The size of each dimension, from the header of an IDX file of unsigned bytes.

    Raises DataError if the header is wrong, or if the file's length does not match the header. The
    unpacked length of a .gz file is read from its last four bytes (RFC 1952).
    """
    head = _head(path, head_size(dimensions))
    if head[:4] != bytes([0, 0, _BYTES, dimensions]) or len(head) < head_size(dimensions):
        raise DataError(
            f"{path} at byte 0: not an IDX file of {dimensions} dimensions: it begins with "
            f"{head[:4].hex(' ') or 'nothing'}, expected 00 00 08 {dimensions:02x}; "
            "copy it again"
        )
    sizes = struct.unpack(f">{dimensions}I", head[4:])
    expected = head_size(dimensions) + math.prod(sizes)
    length, told = _length(path)
    if length != (expected % 2**32 if path.suffix == ".gz" else expected):
        shown = " x ".join(map(str, sizes))
        raise DataError(
            f"{path}: {told} {length} bytes, but its header ({shown}) requires {expected}; copy "
            "it again"
        )
    return sizes


def head_size(dimensions: int) -> int:
    return 4 + 4 * dimensions


def _head(path: Path, size: int) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); copy it again") from error


def _length(path: Path) -> tuple[int, str]:
    if path.suffix != ".gz":
        return path.stat().st_size, "it has"
    with path.open("rb") as file:
        file.seek(-4, 2)
        return int.from_bytes(file.read(4), "little"), "it unpacks to"


_CHUNK = 1 << 20


def unpack(path: Path, dimensions: int, target: Path) -> None:
    """Copy `path`, an IDX file of unsigned bytes, to `target`; a .gz file is unpacked.

    Unpacking writes no more than the size in the header. Raises DataError if the .gz file is
    damaged, or if its unpacked size differs from the size in the header.
    """
    if path.suffix != ".gz":
        shutil.copyfile(path, target)
        return
    left = head_size(dimensions) + math.prod(shape(path, dimensions))
    try:
        with gzip.open(path) as file, target.open("wb") as out:
            while chunk := file.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    break
                out.write(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); copy it again") from error
    if left:
        raise DataError(
            f"{path}: its unpacked size differs from the size in its header; copy it again"
        )


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Use plain files in place; unpack .gz files once, below `cache`."""
    files = find(data)
    shapes = {split: shape_of(*files[split]) for split in SPLITS}
    packed = any(path.suffix == ".gz" for pair in files.values() for path in pair)
    folder = _unpacked(files, cache) if packed else files["train"][0].parent.resolve()
    sides = {side for _, *sides in shapes.values() for side in sides}
    found = {split: shapes[split][0] for split in SPLITS}
    exact = sides == {facts.image_size}
    return prepared_of(data, facts, found, classes=CLASSES, form="idx", files=folder, exact=exact)


def _unpacked(files: Files, cache: Path) -> Path:
    def write(folder: Path) -> None:
        for split, names in IDX_FILES.items():
            for path, name, dimensions in zip(files[split], names, (3, 1), strict=True):
                unpack(path, dimensions, folder / name)

    sources = (path for split in SPLITS for path in files[split])
    return converted(cache, "idx", sources, write)


class Source(base.Source):
    """A file of images and a file of labels."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        images, labels = (prepared.files / name for name in IDX_FILES[split])
        _, self._rows, self._columns = shape_of(images, labels)
        self._images, self._labels = OpenFile(images), OpenFile(labels)

    def read(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        size = self._rows * self._columns
        pixels = self._images.read(self._offset(sample), size)
        image = np.frombuffer(pixels, np.uint8).reshape(self._rows, self._columns, 1)
        return image, self.label(sample)

    def label(self, sample: int) -> int:
        return self._labels.read(head_size(1) + sample, 1)[0]

    def place(self, sample: int) -> str:
        return f"{self._images.path} at byte {self._offset(sample)}"

    def file(self, sample: int) -> str:
        return str(self._images.path)

    def close(self) -> None:
        self._images.close()
        self._labels.close()

    def _offset(self, sample: int) -> int:
        return head_size(3) + sample * self._rows * self._columns


def to_check(target: Target, decode: bool, write_index: bool) -> Listed:
    return files_to_check(target, lambda: find(target.data).items(), _check_files, CLASSES)


def _check_files(part: Part, images: Path, labels: Path) -> None:
    shapes = {}
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "idx"
        for path, dimensions in ((images, 3), (labels, 1)):
            try:
                shapes[path] = shape(path, dimensions)
                if path.suffix == ".gz" or path is labels:
                    unpack(path, dimensions, unpacked)  # unpacks all of it, as a check
            except DataError as error:
                part.broken(path, error)
        if len(shapes) < 2:
            return
        try:
            shape_of(images, labels)
        except DataError as error:
            part.broken(images, error)
        if any(finding.place in (str(images), str(labels)) for finding in part.findings):
            return
        values = np.fromfile(unpacked, np.uint8, offset=head_size(1))
    many, rows, columns = shapes[images]
    part.images += many
    part.sizes[columns, rows] += many
    part.label_bytes(labels, values.tolist(), len(CLASSES), head_size(1), 1)


def detect(path: Path, names: set[str]) -> Format | None:
    known = {name for pair in IDX_FILES.values() for name in pair}
    return "idx" if names & (known | {f"{name}.gz" for name in known}) else None
