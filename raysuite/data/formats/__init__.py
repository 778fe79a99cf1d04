"""The formats of data sets on disk, in modules that are imported on first use.

A module has `count(data)`, `prepare(data, facts, cache)`, `Source(prepared, split)` and
`to_check(target, decode, write_index)`. The modules of DETECTED also have `detect(path, names)`,
which returns the format of the folder `path`, or None. `names` are the names of the files and
folders up to three levels below `path`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from raysuite.data.formats.base import Counts, Source
from raysuite.data.prepared import Prepared, Split
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts, cache_dir

__all__ = ["DETECTED", "Counts", "Source", "count", "module_of", "open_source", "prepare"]

_MODULES = {
    "folder": "image_folder",
    "idx": "idx",
    "binary": "cifar",
    "pickle": "cifar",
    "tfrecord": "tfrecord",
    "text": "token_stream",
    "tokens": "token_stream",
    "own": "own",
    "tensors": "tensors",
}
DETECTED = ("folder", "idx", "binary", "tfrecord")
"""The formats whose modules are asked to recognise a folder, in this order; one per module."""


def module_of(form: str | None) -> Any:
    """The module of a format; None means the user's own data set."""
    return import_module(f"{__name__}.{_MODULES[form or 'own']}")


def count(data: DataOptions) -> Counts:
    """Count the samples of each split of the data set on disk, and list its classes. Raises
    UserError if files are missing or damaged; the message names them and a remedy."""
    counts: Counts = module_of(data.form).count(data)
    return counts


def count_tensors(data: DataOptions) -> Counts:
    """Like `count`, for a user's own data set of (inputs, targets): see the module `tensors`."""
    counts: Counts = module_of("tensors").count(data)
    return counts


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path | None = None) -> Prepared:
    """Prepare the data set on this machine's disk for loading.

    Most sets are read in place, and only their listing is written below `cache` (default:
    `cache_dir()`). The files of the set `digits`, unpacked .gz files of MNIST and converted pickles
    of CIFAR-10 are written there once, and checked against their checksums. Several processes may
    call this at the same time.

    Raises DataError if the data set is missing or damaged, or if its counts differ from `facts`.
    """
    if data.name == "digits":
        module: Any = import_module("raysuite.data.digits")
    else:
        module = module_of("tensors" if facts.inputs else data.form)
    prepared: Prepared = module.prepare(data, facts, cache_dir() if cache is None else cache)
    return prepared


def open_source(prepared: Prepared, split: Split) -> Source:
    """The source of a split. Raises DataError if its files are missing or inconsistent."""
    source: Source = module_of(prepared.form).Source(prepared, split)
    return source
