"""What runs in Ray Data's tasks: slices in, decoded batches out."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch

from raysuite.data.base import Slice
from raysuite.data.formats import Source, open_source
from raysuite.data.prepared import Prepared, Split
from raysuite.data.rendering import Rendering
from raysuite.errors import DataError

SLICES = "slices"
"""The column of what a task is given: a pickled list of Slices."""
_DECODED = pa.schema(
    [("images", pa.large_binary()), ("labels", pa.large_binary()), ("error", pa.string())]
)
"""A row per batch: uint8 [b, size, size, C] and int64 [b], or what is wrong with it."""

_MOST_OPEN = 8
_open: dict[str, Source] = {}
"""Sources by loader; a process of Ray's serves many loaders, one after the other or in turn."""


def decode_slices(table: pa.Table, loader: str, prepared: Prepared, split: Split) -> pa.Table:
    """A row of decoded pixels for each Slice of the lists in `table`. Errors travel as text: what a
    task raises, Ray wraps into tracebacks of its own."""
    rows = [
        _decoded(slice_, loader, prepared, split)
        for row in table.column(SLICES)
        for slice_ in pickle.loads(row.as_py())
    ]
    return pa.Table.from_pylist(rows, schema=_DECODED)


def _decoded(
    slice_: Slice, loader: str, prepared: Prepared, split: Split
) -> dict[str, bytes | str | None]:
    try:
        source, rendering = _source(loader, prepared, split), Rendering(prepared, "exact")
        images = np.empty(rendering.shape(len(slice_.ids), torch.uint8), np.uint8)
        labels = rendering.write(source, slice_, images)
    except DataError as error:
        return {"images": None, "labels": None, "error": str(error)}
    return {"images": images.tobytes(), "labels": labels.tobytes(), "error": None}


def _source(loader: str, prepared: Prepared, split: Split) -> Source:
    if loader not in _open:
        while len(_open) >= _MOST_OPEN:
            _open.pop(next(iter(_open))).close()
        _open[loader] = open_source(prepared, split)
    return _open[loader]
