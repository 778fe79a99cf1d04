"""Random tensors that are already on the device, to measure throughput without loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from raysuite.data.base import Batch, LatestCall, Slice
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.prepared import Prepared, Split
from raysuite.nested import mapped
from raysuite.spec.datasets import SPLITS
from raysuite.spec.loaders import SyntheticOptions


class SyntheticLoader:
    """Draws one random batch, and yields batches that consist of its first samples.

    All batches share memory, so they must not be changed. Images are standard normal, similar to
    normalised images, and labels and tokens are uniform. Validation and training have different
    values, so that a network that memorises the training values gains no accuracy in validation.
    Losses are meaningless. If the set is the user's own and has no images, the batch is not drawn,
    but consists of the first samples of the split, which are read once. For other sets, no files
    are read.
    """

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        options: SyntheticOptions,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        self._prepared, self._split, self._device = prepared, split, device
        self._strides = torch.channels_last if channels_last else torch.contiguous_format
        self._seed = SPLITS.index(split)
        self._drawn: tuple[int, Any] = 0, None
        """The drawn batch: its number of samples, and (images, labels) or (inputs, targets)."""
        self._call = LatestCall()

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        largest = max((len(slice_.ids) for slice_ in slices), default=0)
        if self._drawn[0] < largest:
            self._drawn = largest, self._draw(largest)
        for slice_ in self._call.each(slices):
            images, labels = mapped(self._drawn[1], itemgetter(slice(len(slice_.ids))))
            yield Batch(images, labels, slice_.real, slice_.of_global)

    def close(self) -> None:
        self._drawn = 0, None

    def _draw(self, count: int) -> tuple[Any, Any]:
        prepared, facts = self._prepared, self._prepared.facts
        if facts.inputs:
            with closing(open_source(prepared, self._split)) as source:
                assert isinstance(source, TensorSource)
                numbers = np.arange(count) % prepared.samples(self._split)
                found = mapped(source.batch(numbers.tolist()), lambda each: each.to(self._device))
            return found[0], found[1]
        # a separate generator, because the model uses the default generator
        draws = torch.Generator(self._device).manual_seed(self._seed)
        if facts.sequence:
            both = (2, count, facts.sequence)
            tokens = torch.randint(facts.classes, both, generator=draws, device=self._device)
            return tokens[0], tokens[1]
        shape = (count, facts.channels, facts.image_size, facts.image_size)
        images = torch.randn(shape, generator=draws, device=self._device)
        labels = torch.randint(facts.classes, (count,), generator=draws, device=self._device)
        return images.contiguous(memory_format=self._strides), labels
