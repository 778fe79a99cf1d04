"""Which sample lies where: NumPy arrays in the cache that all processes map, and none copies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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
