"""Where the files of a data set lie, and how many samples they hold.

`plan` counts by these modules and `data` reads by them, so that both find the same files. The
standard library is enough for that: nothing is decoded.
"""

from __future__ import annotations

from raysuite.layouts import cifar, folders, idx, own, records
from raysuite.layouts.base import Counts, root_of
from raysuite.spec.data import DataOptions

__all__ = ["Counts", "count", "root_of"]

_COUNT = {
    "folder": folders.count,
    "tfrecord": records.count,
    "idx": idx.count,
    "binary": cifar.count,
    "pickle": cifar.count,
    None: own.count,
}


def count(data: DataOptions) -> Counts:
    """What lies on disk. Raises UserError that says what is missing or damaged, and what to do."""
    return _COUNT[data.form](data)
