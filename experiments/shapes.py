"""Drawn shapes and a small network for experiments/segmentation.yaml, as an example of a user's own
data set and network."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

BACKGROUND, DISC, SQUARE, IGNORED = 0, 1, 2, 255


class Shapes(Dataset[tuple[Tensor, Tensor]]):
    """Noisy images [1, size, size] with discs and squares of any brightness; masks [size, size] of
    their classes. Borders, one pixel wide, do not count, as in Pascal VOC. Each sample is seeded
    by its number, so that all workers get the same."""

    classes = ("background", "disc", "square")

    def __init__(self, split: str, samples: int = 1000, size: int = 32) -> None:
        self._first = 0 if split == "train" else 10**6
        self._samples = samples if split == "train" else samples // 5
        self._size = size

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        draws = np.random.default_rng(self._first + number)
        rows, columns = np.mgrid[: self._size, : self._size]
        image = draws.normal(0.0, 0.3, (self._size, self._size))
        mask = np.full((self._size, self._size), BACKGROUND)
        for kind in draws.integers(DISC, SQUARE + 1, 3):
            y, x = draws.uniform(0, self._size, 2)
            radius, brightness = draws.uniform(3, self._size / 5), draws.uniform(0.7, 2.0)
            across, down = np.abs(columns - x), np.abs(rows - y)
            away = np.hypot(across, down) if kind == DISC else np.maximum(across, down)
            image[away < radius] += brightness
            mask[away < radius] = kind
            mask[np.abs(away - radius) < 0.5] = IGNORED
        return torch.from_numpy(image).float()[None], torch.from_numpy(mask)


class Convolutions(nn.Module):
    """Logits [b, num_classes, h, w] for images [b, 1, h, w], by dilated convolutions."""

    def __init__(self, num_classes: int, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
        for dilation in (1, 2, 4, 2, 1):
            layers += [
                nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False),
                nn.GroupNorm(4, width),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, num_classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits
