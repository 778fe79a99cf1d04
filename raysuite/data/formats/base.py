"""Code that all formats share: find a data set's files, count its samples, read a sample."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raysuite.data.base import Sample
from raysuite.data.findings import Finding, Listed, Part, Target
from raysuite.data.processes import Count
from raysuite.errors import DataError, some
from raysuite.spec.data_set import DataOptions, root_of
from raysuite.spec.datasets import NAMED

SHOWN = 20
"""The largest number of missing files that a message names."""


@dataclass(frozen=True)
class Counts:
    """The number of samples in each split, and the class names in order of label."""

    train: int
    val: int
    classes: tuple[str, ...]
    passed_over: int = 0
    """The number of ignored files and folders in an image folder, not counting hidden ones."""
    vocabulary: int = 0
    """The vocabulary size of a text, or the number of classes of a set of (inputs, targets); 0 if
    unknown, and for other sets."""
    inputs: str = ""
    """The dtypes and shapes of a sample's inputs, if they are not images: see `DatasetFacts`."""


def absent(data: DataOptions, missing: Sequence[str]) -> DataError:
    """The error that lists missing files and their folder, and says how to get them.

    `missing`: paths below the set's folder; if empty, the folder itself is missing.
    """
    root = root_of(data)
    what = f"{some(missing, SHOWN)} missing in {root}" if missing else f"no folder {root}"
    if data.name not in NAMED:
        return DataError(f"{data.name}: {what}; put the files there, or change data.path")
    make = f"raysuite data make {data.name} --format {data.form}"
    if data.path or data.root:
        make += f" --out {data.path or root}"
    known = NAMED[data.name]
    if known.origin is None:
        whence = "there are no official files"
    elif data.form == known.formats[0] or data.form == "pickle":
        whence = f"official files: {known.origin}; put them into that folder, or set data.path"
    elif data.form == "tfrecord":
        whence = "make TFRecords from an image folder with `raysuite data convert`"
    else:
        whence = "put the images into that folder, or set data.path"
    return DataError(
        f"{data.name} as {data.form}: {what}; {whence}; or make a synthetic data set: `{make}`"
    )


def files_of(
    data: DataOptions, folders: Sequence[str], names: Sequence[str], packed: str = ""
) -> dict[str, Path]:
    """Find the files `names`, with or without the suffix `packed`, in one of `folders`, which are
    relative to the set's folder: in the one that contains the most of them. Raises DataError,
    which names missing files."""
    root = root_of(data)
    if not root.is_dir():
        raise absent(data, ())

    def in_folder(folder: str) -> dict[str, Path]:
        both = [(name, root / folder / f"{name}{end}") for end in (packed, "") for name in names]
        return {name: path for name, path in both if path.is_file()}

    found = max(map(in_folder, folders), key=len)
    missing = [f"{name}[{packed}]" if packed else name for name in names if name not in found]
    if missing:
        raise absent(data, missing)
    return found


@dataclass(frozen=True)
class _Arrays:
    """Arrays that are each stored in a file, SPLIT-NAME.npy."""

    def write(self, folder: Path, split: str) -> None:
        """Write the arrays, one file per field."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in fields(self):
            np.save(folder / f"{split}-{field.name}.npy", getattr(self, field.name))

    @classmethod
    def read(cls, folder: Path, split: str) -> Self:
        """Memory-map the arrays that `write` wrote."""
        files = (folder / f"{split}-{field.name}.npy" for field in fields(cls))
        return cls(*(np.load(file, mmap_mode="r") for file in files))


@dataclass(frozen=True)
class Listing(_Arrays):
    """The samples of a split in which each sample is a file.

    paths: [n] bytes, relative to the set's folder; labels: [n] int64, from 0.
    """

    paths: NDArray[np.bytes_]
    labels: NDArray[np.int64]

    @staticmethod
    def of(paths: Sequence[str], labels: Sequence[int]) -> Listing:
        """A listing of `paths`, with `/` as separator, and their labels."""
        return Listing(_encoded(paths), np.array(labels, dtype=np.int64))


@dataclass(frozen=True)
class RecordListing(_Arrays):
    """The samples of a split in which each sample is a record of a TFRecord shard.

    shards: [s] bytes, relative to the set's folder; records: [n, 3] int64: index of the shard,
    offset and size in bytes.
    """

    shards: NDArray[np.bytes_]
    records: NDArray[np.int64]

    @staticmethod
    def of(shards: Sequence[str], indices: Sequence[NDArray[np.int64]]) -> RecordListing:
        """A listing of `shards`, from the index of each: [n, 2] offsets and sizes in bytes."""
        numbered = [np.insert(index, 0, shard, axis=1) for shard, index in enumerate(indices)]
        return RecordListing(_encoded(shards), np.concatenate(numbered))


def _encoded(paths: Sequence[str]) -> NDArray[np.bytes_]:
    return np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)


class Source(ABC):
    """Reads samples of a split by number. Threads may share a Source; processes must not."""

    @abstractmethod
    def read(self, sample: int) -> tuple[Sample, int]:
        """The image and its label (counted from 0). Raises DataError with the sample's place."""

    @abstractmethod
    def place(self, sample: int) -> str:
        """Where the sample is stored, such as its file and byte offset, for error messages."""

    def label(self, sample: int) -> int:
        """The label, counted from 0; where the format allows it, read without the image. Raises
        DataError."""
        return self.read(sample)[1]

    def file(self, sample: int) -> str | None:
        """The path of the sample's file, whose modification time shows whether the sample has
        changed; None if there is no such file."""
        return None

    def close(self) -> None:  # noqa: B027 - the samples of some formats have no files
        """Close the files."""


class TensorSource(Source):
    """A split whose samples are (inputs, targets), used unchanged except for `data.augment`."""

    @abstractmethod
    def sample(self, number: int) -> Any:
        """(inputs, targets) of one sample; each is an array, or a tuple or dictionary of arrays.
        Raises DataError, which names the sample's place."""

    def weights(self) -> NDArray[np.float64] | None:
        """[samples] weights of the samples in the loss; None if they are not known in advance."""
        return None

    def batch(self, numbers: Sequence[int], draw: tuple[int, int] | None = None) -> Any:
        """(inputs, targets) of several samples, stacked to CPU tensors; `draw`: see Slice. Raises
        DataError if the samples cannot be stacked."""
        samples = [self.sample(number) for number in numbers]
        return self.stacked(self.shown(samples, numbers, draw), numbers[0])

    def shown(
        self, samples: list[Any], numbers: Sequence[int], draw: tuple[int, int] | None
    ) -> list[Any]:
        """The samples after their augmentation, which is determined by `draw`: see Slice."""
        return samples

    def stacked(self, samples: list[Any], first: int) -> Any:
        """(inputs, targets) of the samples, stacked; `first`: number of the first, for errors."""
        from torch.utils.data import default_collate

        inputs, targets = default_collate(samples)
        return inputs, targets

    def read(self, sample: int) -> tuple[Sample, int]:
        raise DataError(f"{self.place(sample)}: the sample is (inputs, targets), not an image")


class OpenFile:
    """A file whose parts can be read in any order, by several threads at once.

    Reads go through the system's page cache, which all processes share. A memory map would avoid
    copying some kilobytes, but would end the process with SIGBUS if the file gets shorter.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb", buffering=0)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset` on. Raises DataError if the file ends earlier."""
        data = os.pread(self._file.fileno(), size, offset)
        if len(data) < size:
            raise DataError(
                f"{self.path} at byte {offset}: the file was cut short; copy the file again"
            )
        return data

    def close(self) -> None:
        self._file.close()


# Checks by `raysuite data check`, for formats with a few files per split.

Files = tuple[Path, ...]


def files_to_check(
    target: Target,
    find: Callable[[], Iterable[tuple[str, Files]]],
    check: Callable[..., None],
    classes: Sequence[str],
) -> Listed:
    """Make a task for each (split, paths) that `find` returns. The task calls
    `check(part, *paths)`; `check` must be picklable. A DataError of `find` becomes a finding.
    """
    found: list[tuple[str, Files]] = []
    findings: tuple[Finding, ...] = ()
    try:
        found.extend(find())
    except DataError as error:
        findings = (Finding(str(target.root), -1, "file", str(error)),)
    total = sum(_size(paths) for _, paths in found)
    tasks = tuple(partial(_check, check, split, paths) for split, paths in found)
    return Listed(tasks, total, "bytes", dict(enumerate(classes)), findings)


def _check(check: Callable[..., None], split: str, paths: Files, count: Count) -> Part:
    part = Part(split)
    try:
        check(part, *paths)
    except OSError as error:
        part.wrong("file", str(error.filename or paths[0]), f"cannot be read ({error})")
    count(_size(paths))
    return part


def _size(paths: Files) -> int:
    return sum(path.stat().st_size for path in paths)
