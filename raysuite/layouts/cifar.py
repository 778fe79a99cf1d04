"""CIFAR-10's binary and pickled batches: https://www.cs.toronto.edu/~kriz/cifar.html"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raysuite.errors import DataError
from raysuite.layouts.base import Counts, absent, root_of
from raysuite.layouts.pickled import Array, load
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import CIFAR_FILES, CIFAR_FOLDERS

SIDE = 32
PLANES = 3 * SIDE * SIDE
"""Bytes of an image: its red, green and blue planes, each row by row."""
RECORD = 1 + PLANES
"""Bytes of a binary record: the label, then the planes."""
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
"""batches.meta.txt of the archives."""


def find(data: DataOptions) -> dict[str, list[Path]]:
    """The batches of each split. Raises DataError that names those that are missing."""
    assert data.form is not None
    root = root_of(data)
    if not root.is_dir():
        raise absent(data, ())
    wanted = CIFAR_FILES[data.form]
    names = [name for split in wanted.values() for name in split]
    folders = (root, root / CIFAR_FOLDERS[data.form])
    folder = max(folders, key=lambda folder: sum((folder / name).is_file() for name in names))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise absent(data, missing)
    return {split: [folder / name for name in wanted[split]] for split in wanted}


def count(data: DataOptions) -> Counts:
    """Images of both splits. Raises DataError that names a batch which is no whole one."""
    one = records if data.form == "binary" else lambda path: len(read_batch(path).labels)
    counts = {split: sum(map(one, paths)) for split, paths in find(data).items()}
    return Counts(counts["train"], counts["val"], CLASSES)


def records(path: Path) -> int:
    """Images of a binary batch. Raises DataError where its last record is cut short."""
    size = path.stat().st_size
    if not size or size % RECORD:
        raise DataError(
            f"{path} at byte {size - size % RECORD}: record cut short, {size % RECORD} of "
            f"{RECORD} bytes; copy it again"
        )
    return size // RECORD


@dataclass(frozen=True)
class Batch:
    """labels, from 0, and the planes of all images, one after the other."""

    labels: bytes
    planes: bytes


def read_batch(path: Path) -> Batch:
    """A pickled batch, read as data: no code in it is run.

    Raises DataError where the file is no pickle of plain data, or not a batch of CIFAR-10.
    """
    try:
        content = load(path.read_bytes())
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path}: not a batch of CIFAR-10 that can be trusted: {error}; take it from the "
            "official archive"
        ) from error
    labels, planes = (
        (content.get(key, content.get(key.encode())) for key in ("labels", "data"))
        if isinstance(content, dict)
        else (None, None)
    )
    flat = labels.values() if isinstance(labels, Array) else labels
    if (
        not isinstance(planes, Array)
        or not isinstance(flat, list)
        or planes.kind != "u1"
        or planes.shape not in ((len(flat), PLANES), (len(flat), 3, SIDE, SIDE))
        or len(planes.data) != len(flat) * PLANES
        or not flat
        or not all(isinstance(label, int) and 0 <= label < len(CLASSES) for label in flat)
    ):
        raise DataError(
            f"{path}: not a batch of CIFAR-10; expected is a dictionary with `labels`, a list of "
            f"numbers from 0 to 9, and `data`, as many rows of {PLANES} bytes; take it from the "
            "official archive"
        )
    return Batch(bytes(flat), planes.data)
