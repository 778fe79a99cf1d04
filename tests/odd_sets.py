"""Data sets as users write them, each with one fault, and a transform; for tests."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Odd:
    """Twelve images of three classes; `fault` says what is wrong with them."""

    classes = ("a", "b", "c")

    def __init__(self, split: str, fault: str = "") -> None:
        self.split, self.fault = split, fault
        self.draws = random.Random(0)

    def __len__(self) -> int:
        return -1 if self.fault == "negative" else 12

    def __getitem__(self, i: int) -> Any:
        image = np.full((6, 5, 3), 10 * i, np.uint8)
        label: Any = i % 3
        if self.fault == "drawn":  # in the same order the same, and in another order others
            image += np.uint8(self.draws.randrange(10))
        if self.fault == "drawn_label":
            label = self.draws.randrange(3)
        if i == 7:
            if self.fault == "lacking":
                raise IndexError(i)
            image = image.astype(np.float32) if self.fault == "float" else image
            image = image[None] if self.fault == "four" else image
            label = {"label": 3, "below": -1, "half": 0.5}.get(self.fault, label)
        return {"image": image, "label": label} if self.fault == "dictionary" else (image, label)


def speckled(image: NDArray[np.uint8], draws: np.random.Generator | None) -> NDArray[np.uint8]:
    """A transform: some noise in training, an inverted image in validation."""
    if draws is None:
        return 255 - image
    return (image // 2 + draws.integers(0, 100, image.shape)).astype(np.uint8)


def misshapen(image: NDArray[np.uint8], draws: np.random.Generator | None) -> Any:
    """A transform that forgets what it is for."""
    return image.astype(np.float32) / 255


def masks(split: str, fault: str = "") -> list[Any]:
    """[1, 4, 4] -> [4, 4], 12 and 3 of them; `fault` concerns the last: `drawn`, or `shape`."""
    made = [(np.full((1, 4, 4), i, np.float32), np.full((4, 4), i % 3)) for i in range(12)]
    if fault == "drawn":
        made[2] = np.full((1, 4, 4), random.random(), np.float32), made[2][1]
    if fault == "shape":
        made[2] = made[2][0], made[2][1][:3]
    return made if split == "train" else made[:3]
