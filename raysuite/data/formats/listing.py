"""The images of a split kept as single files: NumPy arrays that all processes map, none copies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Listing:
    """paths: [n] bytes, relative to the set's folder; labels: [n] int64, from 0."""

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
