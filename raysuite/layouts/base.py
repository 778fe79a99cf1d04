"""What all layouts share: where a set is looked for, what is counted, what is told if it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raysuite.errors import DataError
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import NAMED, default_path

_SHOWN = 20
"""Missing files that a message names."""


@dataclass(frozen=True)
class Counts:
    """Images of both splits, and the names of the classes in the order of their labels."""

    train: int
    val: int
    classes: tuple[str, ...]
    passed_over: int = 0
    """Entries of an image folder's splits that are neither images nor hidden."""


def root_of(data: DataOptions) -> Path:
    """The folder in which the set is looked for."""
    assert data.form is not None
    return Path(data.path or default_path(data.name, data.form, data.root)).expanduser()


def absent(data: DataOptions, missing: Sequence[str]) -> DataError:
    """The error that says what is missing where, whence it comes and what to do.

    `missing` are paths below the set's folder; none means the folder itself.
    """
    root = root_of(data)
    what = f"{named(missing)} missing in {root}" if missing else f"no folder {root}"
    if data.name not in NAMED:
        return DataError(f"{data.name}: {what}; put them there, or change data.path")
    make = f"raysuite data make {data.name} --format {data.form}"
    if data.path or data.root:
        make += f" --out {data.path or root}"
    known = NAMED[data.name]
    if known.origin is None:
        whence = "there are no official files"
    elif data.form == known.formats[0] or data.form == "pickle":
        whence = f"official files: {known.origin}; put them there, or set data.path"
    elif data.form == "tfrecord":
        whence = "TFRecords are made of an image folder by `raysuite data convert`"
    else:
        whence = "put a folder of images there, or set data.path"
    return DataError(
        f"{data.name} as {data.form}: {what}; {whence}; or make a synthetic stand-in: `{make}`"
    )


def named(items: Sequence[str]) -> str:
    """All of `items`, or the first ones and how many more."""
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
