"""Labels alone, for workers that take no images: the later stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from raysuite.data.base import Batch, Slice
from raysuite.data.formats import open_source
from raysuite.data.prepared import Prepared, Split
from raysuite.data.reading import check_label


class LabelLoader:
    """Decodes nothing: images are empty, [b, 0]."""

    def __init__(self, prepared: Prepared, split: Split, device: torch.device) -> None:
        self._source, self._device = open_source(prepared, split), device
        self._classes = prepared.facts.classes

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        """Raises DataError for a label that cannot be read or is none of the set's."""
        for each in slices:
            labels = torch.tensor([*map(self._label, each.ids.tolist())], device=self._device)
            images = torch.empty(len(labels), 0, device=self._device)
            yield Batch(images, labels, each.real, each.of_global)

    def _label(self, sample: int) -> int:
        label = self._source.label(sample)
        check_label(label, self._classes, self._source.place(sample))
        return label

    def close(self) -> None:
        self._source.close()
