"""Random tensors that are on the device already: the limit without any loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from raysuite.data.base import Batch, LatestCall, Slice
from raysuite.data.prepared import Prepared, Split
from raysuite.spec.datasets import SPLITS
from raysuite.spec.loaders import SyntheticOptions


class SyntheticLoader:
    """Delivers the beginning of one random batch repeatedly; reads nothing.

    Batches have the requested sizes, and share memory: they are not to be written to. Images are
    standard normal, as normalised images roughly are, and labels and tokens uniform; validation has
    others than training, so that memorised ones give no accuracy. Losses mean nothing.
    """

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        options: SyntheticOptions,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        self._facts, self._device = prepared.facts, device
        self._strides = torch.channels_last if channels_last else torch.contiguous_format
        self._seed = SPLITS.index(split)
        self._images = self._labels = torch.empty(0)
        self._call = LatestCall()

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        largest = max((len(slice_.ids) for slice_ in slices), default=0)
        if len(self._images) < largest:
            self._images, self._labels = self._drawn(largest)
        for slice_ in self._call.each(slices):
            count = len(slice_.ids)
            images, labels = self._images[:count], self._labels[:count]
            yield Batch(images, labels, slice_.real, slice_.of_global)

    def close(self) -> None:
        self._images = self._labels = torch.empty(0)

    def _drawn(self, count: int) -> tuple[Tensor, Tensor]:
        # a generator of its own: the default one belongs to the model
        draws = torch.Generator(self._device).manual_seed(self._seed)
        facts = self._facts
        if facts.sequence:
            tokens, following = torch.randint(
                facts.classes, (2, count, facts.sequence), generator=draws, device=self._device
            )
            return tokens, following
        shape = (count, facts.channels, facts.image_size, facts.image_size)
        images = torch.randn(shape, generator=draws, device=self._device)
        labels = torch.randint(facts.classes, (count,), generator=draws, device=self._device)
        return images.contiguous(memory_format=self._strides), labels
