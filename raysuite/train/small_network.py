"""The small network on which the gate examines a strategy, and its samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from raysuite.data.base import Batch, Slice

SEED = 2023
_CHANNELS, _SIZE, _CLASSES = 8, 8, 10


class SmallNet(nn.Module):
    """Convolution, optional BatchNorm, and a classifier: enough for every kind of gradient.

    `layers`: how many there are; beyond three, there are more convolutions. `pause_s`: how long a
    backward pass pauses between two layers.
    """

    IMAGE = (1, _SIZE, _SIZE)
    CLASSES = _CLASSES

    def __init__(self, batch_norm: bool, layers: int = 3, pause_s: float = 0.0) -> None:
        super().__init__()
        self._pause_s = pause_s
        self.first = nn.Conv2d(1, _CHANNELS, 3, padding=1, bias=not batch_norm)
        self.norm = nn.BatchNorm2d(_CHANNELS) if batch_norm else nn.Identity()
        self.second = nn.Conv2d(_CHANNELS, _CHANNELS, 3, stride=2, padding=1)
        self.more = nn.ModuleList(
            nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1) for _ in range(layers - 3)
        )
        self.classify = nn.Linear(_CHANNELS * (_SIZE // 2) ** 2, _CLASSES)
        if batch_norm:  # a bias of zero has no relative error
            nn.init.uniform_(self.norm.bias, 0.1, 0.5)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, 10] for images [b, 1, 8, 8]."""
        x = images
        for layer in self.layers():
            if self._pause_s and x.requires_grad:
                x.register_hook(lambda _: time.sleep(self._pause_s))
            for part in layer:
                x = part(x)
        return x

    def layers(self) -> list[list[Callable[[Tensor], Tensor]]]:
        """What is called one after the other; pipelines are cut between two of them."""
        more: list[list[Callable[[Tensor], Tensor]]] = [[each, torch.relu] for each in self.more]
        return [
            [self.first, self.norm, torch.relu],
            [self.second, torch.relu],
            *more,
            [partial(torch.flatten, start_dim=1), self.classify],
        ]


def make_samples(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images [count, 1, 8, 8] and labels [count], the same on every rank."""
    generator = np.random.Generator(np.random.Philox(key=SEED))
    images = generator.standard_normal((count, 1, _SIZE, _SIZE), dtype=np.float32)
    labels = generator.integers(0, _CLASSES, count)
    return torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)


def batch_of(data: tuple[Tensor, Tensor], part: Slice) -> Batch:
    """The samples of `data` that `part` names."""
    images, labels = data
    ids = torch.from_numpy(part.ids).to(images.device)
    return Batch(images[ids], labels[ids], part.real, part.of_global)
