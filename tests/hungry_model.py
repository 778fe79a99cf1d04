"""A network that one rank has no memory for, from a size of its batch on."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from tests.tiny_model import Tiny

_EXBIBYTE = 2**60


class Hungry(Tiny):
    """On the last rank, batches of `above` samples or more ask for more memory than there is.

    `at_call`: not before that many batches, so that a single one fits, and training does not.
    """

    def __init__(self, num_classes: int, in_channels: int, above: int, at_call: int = 1) -> None:
        super().__init__(num_classes, in_channels)
        self._above, self._at_call, self._calls = above, at_call, 0

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, num_classes] for images [b, in_channels, 8, 8]."""
        self._calls += 1
        if _is_last() and len(images) >= self._above and self._calls >= self._at_call:
            torch.empty(_EXBIBYTE, dtype=torch.uint8)
        return super().forward(images)


def _is_last() -> bool:
    return int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
