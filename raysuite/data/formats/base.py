"""What all formats share: where a data set is, what is counted, how a sample is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raysuite.data.base import Sample
from raysuite.data.findings import Finding, Listed, Part, Target
from raysuite.data.processes import Count
from raysuite.errors import DataError
from raysuite.spec.data import DataOptions, root_of
from raysuite.spec.datasets import NAMED

_SHOWN = 20
"""Missing files that a message names."""


@dataclass(frozen=True)
class Counts:
    """Images of both splits, and the names of the classes in the order of their labels."""

    train: int
    val: int
    classes: tuple[str, ...]
    passed_over: int = 0
    """Entries of an image folder's splits that are neither images nor hidden."""


def absent(data: DataOptions, missing: Sequence[str]) -> DataError:
    """The error that names what is missing where, its origin and what to do.

    `missing` are paths below the set's folder; none means the folder itself.
    """
    root = root_of(data)
    what = f"{named(missing)} missing in {root}" if missing else f"no folder {root}"
    if data.name not in NAMED:
        return DataError(f"{data.name}: {what}; put them there, or change data.path")
    make = f"raysuite data make {data.name} --format {data.form}"
    if data.path or data.root:
        make += f" --out {data.path or root}"
    known = NAMED[data.name]
    if known.origin is None:
        whence = "there are no official files"
    elif data.form == known.formats[0] or data.form == "pickle":
        whence = f"official files: {known.origin}; put them there, or set data.path"
    elif data.form == "tfrecord":
        whence = "TFRecords are made of an image folder by `raysuite data convert`"
    else:
        whence = "put a folder of images there, or set data.path"
    return DataError(
        f"{data.name} as {data.form}: {what}; {whence}; or make a synthetic data set: `{make}`"
    )


def named(items: Sequence[str]) -> str:
    """All of `items`, or the first ones and how many more."""
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Listing:
    """Samples that are single files.

    paths: [n] bytes, relative to the set's folder; labels: [n] int64, from 0.
    """

    paths: NDArray[np.bytes_]
    labels: NDArray[np.int64]

    def write(self, folder: Path, split: str) -> None:
        """Write SPLIT-paths.npy and SPLIT-labels.npy."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{split}-paths.npy", self.paths)
        np.save(folder / f"{split}-labels.npy", self.labels)

    @staticmethod
    def of(paths: Sequence[str], labels: Sequence[int]) -> Listing:
        """A listing of `paths`, written with `/`, and their labels."""
        encoded = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        return Listing(encoded, np.array(labels, dtype=np.int64))

    @staticmethod
    def read(folder: Path, split: str) -> Listing:
        """Map the arrays that `write` wrote."""
        return Listing(
            np.load(folder / f"{split}-paths.npy", mmap_mode="r"),
            np.load(folder / f"{split}-labels.npy", mmap_mode="r"),
        )


@dataclass(frozen=True)
class RecordListing:
    """Samples that are records of TFRecord shards.

    shards: [s] bytes, relative to the set's folder; records: [n, 3] int64: number of the shard,
    offset and size in bytes.
    """

    shards: NDArray[np.bytes_]
    records: NDArray[np.int64]

    def write(self, folder: Path, split: str) -> None:
        """Write SPLIT-shards.npy and SPLIT-records.npy."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{split}-shards.npy", self.shards)
        np.save(folder / f"{split}-records.npy", self.records)

    @staticmethod
    def of(shards: Sequence[str], indices: Sequence[NDArray[np.int64]]) -> RecordListing:
        """A listing of `shards` and the index of each: [n, 2] offsets and sizes."""
        paths = np.array([os.fsencode(path) for path in shards], dtype=np.bytes_)
        numbered = [np.insert(index, 0, shard, axis=1) for shard, index in enumerate(indices)]
        return RecordListing(paths, np.concatenate(numbered))

    @staticmethod
    def read(folder: Path, split: str) -> RecordListing:
        """Map the arrays that `write` wrote."""
        return RecordListing(
            np.load(folder / f"{split}-shards.npy", mmap_mode="r"),
            np.load(folder / f"{split}-records.npy", mmap_mode="r"),
        )


class Source(Protocol):
    """One split's images by sample number; all loaders read their bytes through it. Thread-safe;
    not to be shared by processes."""

    def read(self, sample: int) -> tuple[Sample, int]:
        """The image and its label, from 0. Raises DataError that names file and offset."""

    def label(self, sample: int) -> int:
        """The label alone, from 0; as cheap as the form on disk allows. Raises DataError."""

    def place(self, sample: int) -> str:
        """The sample's place, as an error names it."""

    def file(self, sample: int) -> str | None:
        """The sample's file; None where there is none whose time shows a change."""

    def close(self) -> None:
        """Close the files."""


class OpenFile:
    """A file of which any part can be read, from several threads at once.

    Through the system's page cache that all processes share. A mapping would save the copy of some
    kilobytes, and end the process with SIGBUS where a file is cut short or its disk fails.
    """

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


# `raysuite data check` of formats whose splits are a few whole files.

Files = tuple[Path, ...]


@dataclass(frozen=True)
class _Task:
    """Files of a split that are read in one task."""

    split: str
    paths: Files
    check: Callable[..., None]
    """Called with the Part and the paths; importable."""


def files_to_check(
    target: Target,
    find: Callable[[], Iterable[tuple[str, Files]]],
    check: Callable[..., None],
    classes: Sequence[str],
) -> Listed:
    """The arguments of `check(part, *paths)`: each (split, files) that `find` returns.

    A DataError of `find` is a finding.
    """
    tasks: tuple[_Task, ...] = ()
    findings: tuple[Finding, ...] = ()
    try:
        tasks = tuple(_Task(split, paths, check) for split, paths in find())
    except DataError as error:
        findings = (Finding(str(target.root), -1, "file", str(error)),)
    total = sum(path.stat().st_size for task in tasks for path in task.paths)
    return Listed(_check, tasks, total, "bytes", dict(enumerate(classes)), findings)


def _check(task: _Task, count: Count) -> Part:
    part = Part(task.split)
    try:
        task.check(part, *task.paths)
    except OSError as error:
        part.wrong("file", str(error.filename or task.paths[0]), f"cannot be read ({error})")
    count(sum(path.stat().st_size for path in task.paths))
    return part
