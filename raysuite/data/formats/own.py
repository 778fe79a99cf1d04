"""The user's own data set, `module:attribute`; the attribute is called with each split's name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from math import prod
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysuite import lazy
from raysuite.data.findings import Finding, Listed, Part, Target, reason
from raysuite.data.formats import base
from raysuite.data.formats.base import Counts
from raysuite.data.header import DepthError
from raysuite.data.pixels import decode, eight_bits, header_of, of_image, size_of
from raysuite.data.prepared import Prepared, Split, prepared_of
from raysuite.data.processes import Count
from raysuite.errors import DataError, UserError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import SPLITS, DatasetFacts, distinct_names, match_classes

EXPECTED = (
    "expected a map-style data set, with len(), and [i] for sample i, counted from 0; see "
    "docs/how-to/own-data.md"
)


def open_split(data: DataOptions, split: str) -> Any:
    """The data set that attribute(split=..., **options) returns.

    Raises UserError if the attribute cannot be imported, and DataError if the call fails or its
    result cannot be indexed.
    """
    make = lazy.load(data.name)
    try:
        made = make(split=split, **data.options)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise any error
        raise DataError(
            f"{data.name}(split={split!r}, ...) raised {type(error).__name__}: {error}; it is "
            "called with the split, `train` or `val`, and data.options"
        ) from error
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise DataError(f"{data.name} returned a {type(made).__name__}; {EXPECTED}")
    return made


def count(data: DataOptions) -> Counts:
    """The number of samples in each split and the class names, as reported by the data set."""
    splits = {split: open_split(data, split) for split in SPLITS}
    counts = {split: length(data, split, made) for split, made in splits.items()}
    empty = [split for split in SPLITS if not counts[split]]
    if empty:
        raise DataError(f"{data.name}: no samples in {' and '.join(empty)}; both splits need some")
    names = class_names(data, splits["train"])
    if declared_classes(data, splits["val"]):
        of_val, where = class_names(data, splits["val"]), f"{data.name}(split='val')"
        remedy = "use the same class numbers in both splits"
        match_classes(names, "split='train'", of_val, where, remedy)
    return Counts(counts["train"], counts["val"], names)


def length(data: DataOptions, split: str, made: Any) -> int:
    """The number of samples in a split. Raises DataError if the user's code raises."""
    try:
        return len(made)
    except (Exception, SystemExit) as error:  # the user's code, or len() of a negative number
        raise DataError(
            f"len({data.name}(split={split!r})) raised {type(error).__name__}: {error}; {EXPECTED}"
        ) from error


def declared_classes(data: DataOptions, made: Any) -> tuple[str, ...]:
    """The class names in the data set's attribute `classes` (for a number n: 0 to n - 1); empty if
    there is no such attribute.

    Raises DataError unless `classes` is a number or a sequence: a Python set has no order, and the
    order of a dictionary need not be that of the labels.
    """
    own = getattr(made, "classes", None)
    if own is None:
        return ()
    with suppress(TypeError):
        return tuple(map(str, range(index(own))))
    if isinstance(own, str) or not isinstance(own, Sequence | np.ndarray):
        raise DataError(
            f"{data.name}: its `classes` is a {type(own).__name__}; valid: a list of names in the "
            "order of the labels, or the number of classes"
        )
    return tuple(map(str, own))


def class_names(data: DataOptions, made: Any) -> tuple[str, ...]:
    """The names in the data set's attribute `classes`, or else the numbers below `data.classes`.

    Raises DataError if both are missing, or if they disagree.
    """
    names = declared_classes(data, made)
    if data.classes is None and not names:
        raise DataError(
            f"{data.name}: the number of classes is not known; set data.classes, or give the data "
            "set an attribute `classes` with the class names"
        )
    if names and data.classes is not None and len(names) != data.classes:
        raise DataError(
            f"{data.name} has {len(names)} classes, but data.classes is {data.classes}; correct "
            "one of the two"
        )
    return distinct_names(names, data.name) or tuple(map(str, range(data.classes or 0)))


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Get the counts from the data set; nothing is kept in `cache`."""
    found = count(data)
    counts = {"train": found.train, "val": found.val}
    files = Path(data.name)
    return prepared_of(data, facts, counts, classes=found.classes, form="own", files=files)


class Source(base.Source):
    """Reads samples by `data_set[i]`, and converts them to pixels."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        self._name = f"{prepared.data.name}(split={split!r})"
        self._channels = prepared.facts.channels
        self._set = open_split(prepared.data, split)

    def read(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        place = self.place(sample)
        try:
            image, label = _pair(self._set[sample], place)
            return self._pixels(image, place), label
        except DataError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise any error
            raise DataError(
                f"{place} raised {type(error).__name__}: {error}; expected an image and its "
                "label; correct the data set, or set data.bad_samples to skip"
            ) from error

    def place(self, sample: int) -> str:
        return f"{self._name}[{sample}]"

    def _pixels(self, image: Any, place: str) -> NDArray[np.uint8]:
        if isinstance(image, bytes | bytearray):
            header_of(bytes(image), place)
            return decode(bytes(image), self._channels, place)
        try:
            whole = isinstance(image, Image.Image)
            given = of_image(image, self._channels) if whole else np.asarray(image)
            pixels = given[:, :, None] if given.ndim == 2 else given
            if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or 0 in pixels.shape:
                raise DataError(
                    f"{place}: the image is {given.dtype} of shape {list(given.shape)}; valid: "
                    "a PIL image, uint8 or uint16 pixels [H, W], [H, W, 1] or [H, W, 3], and the "
                    "bytes of an image file"
                )
            return np.ascontiguousarray(eight_bits(pixels))
        except DepthError as error:
            raise DataError(f"{place}: {error}") from error


def _pair(sample: Any, place: str) -> tuple[Any, int]:
    """The image and the class number of a sample. Raises DataError for a sample of any other form.
    Exceptions of the user's code are not caught."""
    wanted = "expected (image, class number)"
    if isinstance(sample, Mapping) or not isinstance(sample, Collection) or len(sample) != 2:
        parts = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
        if isinstance(sample, Mapping):
            parts = f" with {', '.join(map(repr, sample))}"
        raise DataError(f"{place}: the sample is a {type(sample).__name__}{parts}; {wanted}")
    image, label = sample
    if isinstance(label, Mapping) or prod(np.shape(label)) != 1:
        shape = "" if isinstance(label, Mapping) else f" of shape {list(np.shape(label))}"
        raise DataError(
            f"{place}: its label is a {type(label).__name__}{shape}; {wanted}: one whole number "
            "for each image, such as the argmax of a one-hot target"
        )
    number = int(label)
    if float(label) != number:
        raise DataError(f"{place}: its label is {label!r}; expected a whole number")
    return image, number


# `raysuite data check`: each sample is read twice, in the same way as loaders read it.

_CHUNK = 500
"""Samples per task; each task makes two instances of the data set."""
DIFFERS = (
    "differs when another instance reads it, so workers and epochs would not train on the same "
    "data; draw random numbers from a generator that is seeded by the split and the sample's number"
)
"""Message for a sample that is not the same at every reading."""


def to_check(target: Target, decode: bool, write_index: bool) -> Listed:
    """Tasks that check the samples of both splits."""
    data = target.data
    try:
        counts = count(data)
        facts = DatasetFacts(
            counts.train, counts.val, len(counts.classes), data.channels or 3, data.image_size or 1
        )
        prepared = prepare(data, facts, Path())
    except UserError as error:
        wrong = Finding(data.name, -1, "file", reason(error, data.name))
        return Listed((), 0, "images", {}, (wrong,))
    names = dict(enumerate(counts.classes))
    tasks = check_tasks(counts, partial(_check, prepared))
    return Listed(tasks, counts.train + counts.val, "images", names, ())


def check_tasks(
    counts: Counts, check: Callable[[Split, range, Count], Part]
) -> tuple[Callable[[Count], Part], ...]:
    """Tasks that call `check`, each for a chunk of the samples of a split."""
    splits: tuple[tuple[Split, int], ...] = (("train", counts.train), ("val", counts.val))
    return tuple(
        partial(check, split, range(samples)[start : start + _CHUNK])
        for split, samples in splits
        for start in range(0, samples, _CHUNK)
    )


def _check(prepared: Prepared, split: Split, samples: range, done: Count) -> Part:
    """Read all samples, and read them again in reverse order from a second instance of the data
    set. Workers also have separate instances, and read samples in different orders, so an image or
    label that differs is an error."""
    part = Part(split)
    classes, channels = prepared.facts.classes, prepared.facts.channels
    first: dict[int, tuple[int, int]] = {}
    with closing(Source(prepared, split)) as source:
        for sample in samples:
            place = source.place(sample)
            part.images += 1
            try:
                image, label = source.read(sample)
                pixels = decode(image, channels, place)
            except DataError as error:
                part.unreadable += 1
                part.wrong("image", place, reason(error, place))
                continue
            finally:
                done(1)
            part.sizes[size_of(pixels, place)] += 1
            part.labels[label] += 1
            if not 0 <= label < classes:
                message = f"label {label}; valid: 0 to {classes - 1}"
                part.wrong("label", place, message)
            first[sample] = (label, _digest(pixels))
    with closing(Source(prepared, split)) as source:
        for sample in reversed(first):
            place = source.place(sample)
            try:
                image, label = source.read(sample)
                again = (label, _digest(decode(image, channels, place)))
            except DataError as error:
                part.wrong("image", place, f"at the second reading: {reason(error, place)}")
                continue
            if again != first[sample]:
                what = "label" if again[0] != first[sample][0] else "image"
                part.wrong("image", place, f"its {what} {DIFFERS}")
    return part


def _digest(pixels: NDArray[np.uint8]) -> int:
    return hash((pixels.shape, pixels.tobytes()))
