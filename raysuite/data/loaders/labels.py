"""Load only labels, for workers of later pipeline stages, which need no images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from raysuite.data.base import Batch, Slice
from raysuite.data.formats import open_source
from raysuite.data.prepared import Prepared, Split
from raysuite.data.reading import label_of


class LabelLoader:
    """Reads only labels; images are empty, [b, 0]."""

    def __init__(self, prepared: Prepared, split: Split, device: torch.device) -> None:
        self._source, self._device = open_source(prepared, split), device
        self._classes = prepared.facts.classes

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        """Yield one Batch per Slice. Raises DataError for an unreadable or invalid label."""
        for each in slices:
            found = [label_of(self._source, sample, self._classes) for sample in each.ids.tolist()]
            labels = torch.tensor(found, device=self._device)
            images = torch.empty(len(labels), 0, device=self._device)
            yield Batch(images, labels, each.real, each.of_global)

    def close(self) -> None:
        self._source.close()
