"""A Slice -> its samples, their labels and their views: where every loader begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raysuite.data.base import Sample, Slice
from raysuite.data.decoders import cut_from
from raysuite.data.formats import Source
from raysuite.data.pixels import copy_by_channel, fit, size_of
from raysuite.data.prepared import Prepared
from raysuite.data.transforms import transformed
from raysuite.data.views import Views, views
from raysuite.errors import DataError


@dataclass(frozen=True)
class Read:
    """One micro-batch before anything is decoded."""

    samples: list[Sample]
    labels: NDArray[np.int64]
    """[b], from 0."""
    sizes: NDArray[np.int64]
    """[b, 2] width and height in pixels."""
    views: Views


def read(source: Source, prepared: Prepared, slice_: Slice) -> Read:
    """Read the samples of `slice_`.

    Raises DataError that names the file of a sample that is missing, is no image, has a label
    beyond the set's classes, or another size than the set's.
    """
    ids = slice_.ids.tolist()
    pairs = [source.read(sample) for sample in ids]
    samples = [sample for sample, _ in pairs]
    sizes = [
        size_of(sample, source.place(number)) for number, sample in zip(ids, samples, strict=True)
    ]
    classes = prepared.facts.classes
    for number, (_, label) in zip(ids, pairs, strict=True):
        if not 0 <= label < classes:  # the loss would otherwise abort the process without a message
            raise DataError(
                f"{source.place(number)}: its class is number {label}, counted from 0; the set has "
                f"{classes} classes"
            )
    if prepared.exact:
        side = prepared.facts.image_size
        for number, (width, height) in zip(ids, sizes, strict=True):
            if (width, height) != (side, side):
                raise DataError(
                    f"{source.place(number)}: the image has {width} x {height} pixels; "
                    f"expected are {side} x {side}"
                )
    all_sizes = np.array(sizes, np.int64).reshape(-1, 2)
    return Read(
        samples=samples,
        labels=np.array([label for _, label in pairs], np.int64),
        sizes=all_sizes,
        views=views(prepared, slice_.ids, all_sizes, slice_.draw),
    )


def shown(source: Source, prepared: Prepared, slice_: Slice, got: Read) -> NDArray[np.uint8]:
    """The views of what was read, as the reference shows them: [b, size, size, C].

    Raises DataError as `decode`.
    """
    facts = prepared.facts
    size = facts.image_size
    images = np.empty((len(got.samples), size, size, facts.channels), np.uint8)
    for row, (number, sample) in enumerate(zip(slice_.ids.tolist(), got.samples, strict=True)):
        cut, part = cut_from(sample, facts.channels, got.views.boxes[row], source.place(number))
        fitted = fit(cut, part, size)
        view = fitted[:, ::-1] if got.views.flips[row] else fitted
        view = transformed(prepared, view, number, slice_.draw, source.place(number))
        copy_by_channel(view, images[row])
    return images
