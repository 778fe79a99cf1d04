"""Read a Slice's samples, labels and views: the first step of every image loader."""

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
    """One micro-batch before decoding."""

    samples: list[Sample]
    labels: NDArray[np.int64]
    """[b] class numbers from 0."""
    sizes: NDArray[np.int64]
    """[b, 2] width and height in pixels."""
    views: Views


def read(source: Source, prepared: Prepared, slice_: Slice) -> Read:
    """Read the samples of `slice_`.

    Raises DataError, which names the file, for a sample that is missing, is not an image, has a
    label outside the set's classes, or does not have the size that the set requires.
    """
    facts, side = prepared.facts, prepared.facts.image_size
    samples, labels, sizes = [], [], []
    for number in slice_.ids.tolist():
        sample, label = source.read(number)
        place = source.place(number)
        size = size_of(sample, place)
        check_label(label, facts.classes, place)
        if prepared.exact and size != (side, side):
            raise DataError(
                f"{place}: the image has {size[0]} x {size[1]} pixels; expected {side} x {side}"
            )
        samples.append(sample)
        labels.append(label)
        sizes.append(size)
    all_sizes = np.array(sizes, np.int64).reshape(-1, 2)
    return Read(
        samples=samples,
        labels=np.array(labels, np.int64),
        sizes=all_sizes,
        views=views(prepared, slice_.ids, all_sizes, slice_.draw),
    )


def check_label(label: int, classes: int, place: str) -> None:
    """Raise DataError for a label outside the set's classes: the loss would fail."""
    if not 0 <= label < classes:
        raise DataError(
            f"{place}: its class is number {label}, counted from 0; the set has {classes} classes"
        )


def label_of(source: Source, sample: int, classes: int) -> int:
    """Read only a sample's label. Raises DataError for an unreadable or invalid label."""
    label = source.label(sample)
    check_label(label, classes, source.place(sample))
    return label


def shown(source: Source, prepared: Prepared, slice_: Slice, got: Read) -> NDArray[np.uint8]:
    """The views of the samples in `got`, with the reference decoder's pixels: [b, size, size, C].

    Raises the errors of `decode`.
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
