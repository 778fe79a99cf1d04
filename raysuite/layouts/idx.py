"""MNIST's IDX files: http://yann.lecun.com/exdb/mnist, section "file formats"."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

from raysuite.errors import DataError
from raysuite.layouts.base import Counts, absent, root_of
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import IDX_FILES, SPLITS

_FOLDERS = (".", "raw", "MNIST/raw")
"""Where the files may lie below the set's folder: torchvision keeps them in MNIST/raw."""
_BYTES = 0x08
"""The type code of unsigned bytes."""
CLASSES = tuple(str(digit) for digit in range(10))

Files = dict[str, tuple[Path, Path]]
"""Images and labels of each split."""


def find(data: DataOptions) -> Files:
    """The four files, plain or .gz. Raises DataError that names those that are missing."""
    root = root_of(data)
    if not root.is_dir():
        raise absent(data, ())
    names = [name for split in SPLITS for name in IDX_FILES[split]]
    found = max(
        ({name: _file(root / folder, name) for name in names} for folder in _FOLDERS),
        key=lambda files: sum(path is not None for path in files.values()),
    )
    missing = [f"{name}[.gz]" for name, path in found.items() if path is None]
    if missing:
        raise absent(data, missing)
    present = {name: path for name, path in found.items() if path is not None}
    return {
        split: (present[images], present[labels]) for split, (images, labels) in IDX_FILES.items()
    }


def _file(folder: Path, name: str) -> Path | None:
    plain, packed = folder / name, folder / f"{name}.gz"
    return plain if plain.is_file() else packed if packed.is_file() else None


def count(data: DataOptions) -> Counts:
    """Images of both splits, from the headers. Raises DataError where files disagree."""
    counts = {split: shape_of(*files)[0] for split, files in find(data).items()}
    return Counts(counts["train"], counts["val"], CLASSES)


def shape_of(images: Path, labels: Path) -> tuple[int, int, int]:
    """Images, rows and columns of a split. Raises DataError where its two files disagree."""
    many, rows, columns = shape(images, 3)
    (labelled,) = shape(labels, 1)
    if many != labelled:
        raise DataError(
            f"{images} holds {many} images, and {labels} holds {labelled} labels; copy both again"
        )
    if not many or not rows or not columns:
        raise DataError(f"{images}: {many} images of {rows} x {columns} pixels; copy it again")
    return many, rows, columns


def shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """The sizes that the header of an IDX file of unsigned bytes tells.

    Raises DataError where there is no such header, or where the file has another length than it
    says (of a .gz: in its last four bytes, RFC 1952; nothing is unpacked).
    """
    head = _head(path, head_size(dimensions))
    if head[:4] != bytes([0, 0, _BYTES, dimensions]) or len(head) < head_size(dimensions):
        raise DataError(
            f"{path} at byte 0: not an IDX file of {dimensions} dimensions: it begins with "
            f"{head[:4].hex(' ') or 'nothing'}, expected is 00 00 08 {dimensions:02x}; "
            "copy it again"
        )
    sizes = struct.unpack(f">{dimensions}I", head[4:])
    expected = head_size(dimensions) + math.prod(sizes)
    length, told = _length(path)
    if length != (expected % 2**32 if path.suffix == ".gz" else expected):
        shown = " x ".join(map(str, sizes))
        raise DataError(
            f"{path}: {told} {length} bytes, and its header, {shown}, asks for {expected}; "
            "copy it again"
        )
    return sizes


def head_size(dimensions: int) -> int:
    """Bytes of a header."""
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
