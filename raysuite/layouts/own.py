"""A person's own data set, `module:attribute`: called once for each split."""

from __future__ import annotations

from typing import Any

from raysuite import lazy
from raysuite.errors import DataError, UserError
from raysuite.layouts.base import Counts
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import SPLITS

EXPECTED = (
    "expected is a map-style data set: len(), and [i] -> (image, label) for i from 0; see "
    "docs/how-to/own-data.md"
)


def open_split(data: DataOptions, split: str) -> Any:
    """The data set that attribute(split=..., **options) returns.

    Raises UserError where it cannot be imported, and DataError where calling it fails or what
    comes back cannot be indexed.
    """
    make = lazy.load(data.name)
    try:
        made = make(split=split, **data.options)
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise DataError(
            f"{data.name}(split={split!r}, ...) raised {type(error).__name__}: {error}; it is "
            "called with the split, `train` or `val`, and data.options"
        ) from error
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise DataError(f"{data.name} returned a {type(made).__name__}; {EXPECTED}")
    return made


def count(data: DataOptions) -> Counts:
    """Samples of both splits and the names of the classes, as the data set tells them."""
    splits = {split: open_split(data, split) for split in SPLITS}
    counts = {split: _length(data, split, made) for split, made in splits.items()}
    empty = [split for split in SPLITS if not counts[split]]
    if empty:
        raise DataError(f"{data.name}: no samples in {' and '.join(empty)}; both splits need some")
    return Counts(counts["train"], counts["val"], class_names(data, splits["train"]))


def _length(data: DataOptions, split: str, made: Any) -> int:
    try:
        return len(made)
    except Exception as error:  # the user's code may raise anything; len() where it is negative
        raise DataError(
            f"len({data.name}(split={split!r})) raised {type(error).__name__}: {error}; {EXPECTED}"
        ) from error


def class_names(data: DataOptions, made: Any) -> tuple[str, ...]:
    """The data set's own `classes`, else numbers below `data.classes`.

    Raises DataError where neither tells them, or where they disagree.
    """
    own = getattr(made, "classes", None)
    names = tuple(map(str, range(own) if isinstance(own, int) else own or ()))
    if data.classes is None and not names:
        raise DataError(
            f"{data.name}: the number of classes is not known; set data.classes, or give the data "
            "set an attribute `classes` with their names"
        )
    if names and data.classes is not None and len(names) != data.classes:
        raise DataError(
            f"{data.name} has {len(names)} classes, and data.classes is {data.classes}; correct one"
        )
    return names or tuple(map(str, range(data.classes or 0)))
