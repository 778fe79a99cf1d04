"""The baseline of loaders.py: torchvision's ImageFolder with a DataLoader, without raysuite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from raysuite.spec.datasets import IMAGENET_MEAN, IMAGENET_STD


class PlainImageFolder:
    """torchvision's training recipe: Pillow, random-resized crop, flip, ToTensor, Normalize."""

    def __init__(self, root: Path, processes: int, batch: int, size: int = 224) -> None:
        steps = [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
        images = ImageFolder(str(root / "train"), transforms.Compose(steps))
        self._order = _Shuffled(len(images))
        self._loader: DataLoader[Any] = DataLoader(
            images,
            batch_size=batch,
            sampler=self._order,
            num_workers=processes,
            persistent_workers=processes > 0,
            # as in raysuite's loaders: a fork of a process with threads may hang
            multiprocessing_context="forkserver" if processes else None,
        )

    def run(self, images: int, epoch: int) -> int:
        """Load `images` images in a new order."""
        self._order.images, self._order.epoch = images, epoch
        return sum(len(labels) for _, labels in self._loader)

    def close(self) -> None:
        """End the processes."""
        iterator: Any = self._loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()
        self._loader._iterator = None


class _Shuffled(Sampler[int]):
    """The first `images` indices of a shuffled epoch."""

    def __init__(self, samples: int) -> None:
        self._samples, self.images, self.epoch = samples, samples, 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self._samples, generator=generator)
        return iter(order[: self.images].tolist())

    def __len__(self) -> int:
        return min(self.images, self._samples)
