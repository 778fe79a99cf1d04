"""The digits as arrays in memory: the images, labels and order of `data: digits`, with no files to
decode, which takes most of the time of a run that trains Tiny."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysuite.spec.datasets import DIGITS_MEAN, DIGITS_STD

DATA: dict[str, Any] = {
    "name": "tests.digit_arrays:Digits",
    "image_size": 8,
    "channels": 1,
    "mean": list(DIGITS_MEAN),
    "std": list(DIGITS_STD),
}
"""The `data` of a spec."""


@cache
def _arrays() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.round(digits.images * (255 / 16)).astype(np.uint8), digits.target


class Digits:
    """A split."""

    classes = 10

    def __init__(self, split: str) -> None:
        self._images, self._labels = _arrays()
        by_class = np.argsort(self._labels, kind="stable")
        held_out = np.arange(len(by_class)) % 5 == 0
        self._scans = by_class[held_out if split == "val" else ~held_out]

    def __len__(self) -> int:
        return len(self._scans)

    def __getitem__(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        scan = self._scans[sample]
        return self._images[scan], int(self._labels[scan])
