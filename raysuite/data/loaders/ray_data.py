"""Load with Ray Data, in raysuite's order of samples."""

from __future__ import annotations

import logging
import math
import pickle
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import ray
import ray.data
import torch
from ray.data.exceptions import SystemException

from raysuite.data.base import Batch, LatestCall, Slice
from raysuite.data.formats import Source, open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.normalise import Normalise
from raysuite.data.prepared import Prepared, Split
from raysuite.data.rendering import Rendering
from raysuite.errors import DataError, RunError, UserError
from raysuite.nested import leaves, mapped
from raysuite.spec.loaders import RayDataOptions

_Row = tuple[Any, Any] | str
"""Images [b, size, size, C] and labels [b], or inputs and targets of samples that are not images,
not yet copied to the device; or an error message."""
_Rows = Generator[_Row]

_BLOCKS_PER_TASK = 4
"""Object store memory per decoded or prefetched block, as a multiple of the block's size."""


class RayDataLoader:
    """Decodes in Ray Data tasks on this worker's node, and streams the decoded batches.

    Ray Data's own splits give each row to the worker that is free. Here, each worker streams a
    dataset of its own slices, and gets the blocks in the order of these slices.

    Raises UserError if Ray is not running.
    """

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        options: RayDataOptions,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        if not ray.is_initialized():
            raise UserError(
                "the loader ray_data needs a running Ray, but there is none in this process; "
                "start the run with `raysuite run`, or call ray.init() first"
            )
        # opened here, so that errors are raised now
        with closing(open_source(prepared, split)) as source:
            if isinstance(source, TensorSource):
                self._sample_bytes = sum(each.nbytes for each in leaves(source.batch([0])))
            else:
                self._sample_bytes = prepared.facts.image_values
        self._prepared, self._split, self._options = prepared, split, options
        self._name = uuid.uuid4().hex
        self._device = device
        self._normalise = (
            None
            if prepared.tensors
            else Normalise(Rendering(prepared, "exact"), device, channels_last)
        )
        self._rows: _Rows | None = None
        self._call = LatestCall()
        # avoids one or two lines per epoch and worker, which Ray Data's log file also has
        logging.getLogger("ray.data").setLevel(logging.WARNING)

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        if not slices:
            return
        self._stop()
        self._rows = rows = self._stream(slices)
        for slice_ in self._call.each(slices):
            row = next(rows)
            if isinstance(row, str):
                rows.close()
                raise DataError(row)
            if self._normalise is not None:
                yield self._normalise.batch(*row, slice_)
                continue
            inputs, targets = mapped(row, lambda each: each.to(self._device, non_blocking=True))
            yield Batch(inputs, targets, slice_.real, slice_.of_global)

    def close(self) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _stream(self, slices: Sequence[Slice]) -> _Rows:
        """One row per slice, in order."""
        dataset, ahead = self._dataset(slices)
        blocks: Any = iter(
            dataset.iter_batches(
                batch_size=None,
                batch_format="pyarrow",
                prefetch_batches=ahead,
                _collate_fn=self._load,
            )
        )
        try:
            with closing(blocks):  # closing stops Ray Data's threads and tasks
                for block in blocks:
                    yield from block
        except (ray.exceptions.RayError, SystemException) as error:
            raise RunError(f"Ray Data failed: {error}") from error

    def _load(self, block: Any) -> list[_Row]:
        """Copy the rows of `_decode_slices` into memory for the device, in a thread of Ray Data."""
        found: list[_Row] = []
        names = block.column_names
        for values in zip(*block.columns, strict=True):
            row = dict(zip(names, values, strict=True))
            if row["error"].is_valid:
                found.append(row["error"].as_py())
                continue
            if self._normalise is None:
                found.append(pickle.loads(row["images"].as_py()))
                continue
            labels = np.frombuffer(row["labels"].as_buffer(), np.int64)
            pixels = self._normalise.room(len(labels))
            pixels.numpy().reshape(-1)[:] = np.frombuffer(row["images"].as_buffer(), np.uint8)
            found.append((pixels, self._normalise.pinned(labels)))
        return found

    def _dataset(self, slices: Sequence[Slice]) -> tuple[ray.data.Dataset, int]:
        """The dataset of `slices`, one block per task, and the number of blocks to prefetch."""
        options, size = self._options, max(len(slice_.ids) for slice_ in slices)
        per_task = max(1, options.images_per_task // size)
        ahead = math.ceil(options.prefetch / per_task)
        parts = [slices[start : start + per_task] for start in range(0, len(slices), per_task)]
        items = [{_SLICES: pickle.dumps(part)} for part in parts]
        # from_arrow would inspect each table in a task that requires a CPU: see num_cpus below
        dataset = ray.data.from_items(items, override_num_blocks=len(items))
        # Affects only this dataset's copy of the context.
        dataset.context.enable_progress_bars = False
        dataset.context.print_on_execution_start = False
        execution = dataset.context.execution_options
        execution.preserve_order = True
        # By default each dataset may use half the node's object store, and a node has many workers.
        block_bytes = per_task * size * self._sample_bytes
        execution.resource_limits = ray.data.ExecutionResources.for_limits(
            object_store_memory=_BLOCKS_PER_TASK * (options.tasks + ahead) * block_bytes
        )
        decode: Any = _decode_slices
        decoded = dataset.map_batches(
            decode,
            fn_kwargs={"loader": self._name, "prepared": self._prepared, "split": self._split},
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.TaskPoolStrategy(size=options.tasks),
            # The workers keep their CPUs allocated while they wait for these tasks. On a full
            # cluster, a task that requires a CPU would wait for the workers for ever.
            num_cpus=0,
            # run on this node, which has the files
            label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
        )
        return decoded, ahead


# Code that runs in Ray Data's tasks: it gets slices and returns decoded batches.

_SLICES = "slices"
"""The input column of a task: a pickled list of Slices."""
_DECODED = pa.schema(
    [("images", pa.large_binary()), ("labels", pa.large_binary()), ("error", pa.string())]
)
"""One row per batch: uint8 [b, size, size, C] and int64 [b], or an error message. For samples that
are not images, `images` contains the pickled inputs and targets."""

_MOST_OPEN = 8
_open: dict[str, Source] = {}
"""Name of a loader -> its source. A Ray process can run tasks of several loaders."""


def _decode_slices(table: pa.Table, loader: str, prepared: Prepared, split: Split) -> pa.Table:
    """A table with one row (see _DECODED) for each Slice in `table`. Errors are returned as text,
    because Ray adds its own tracebacks to exceptions of tasks."""
    rows = [
        _decoded(slice_, loader, prepared, split)
        for row in table.column(_SLICES)
        for slice_ in pickle.loads(row.as_py())
    ]
    return pa.Table.from_pylist(rows, schema=_DECODED)


def _decoded(
    slice_: Slice, loader: str, prepared: Prepared, split: Split
) -> dict[str, bytes | str | None]:
    try:
        source = _source(loader, prepared, split)
        if isinstance(source, TensorSource):
            found = source.batch(slice_.ids.tolist(), slice_.draw)
            return {"images": pickle.dumps(found), "labels": b"", "error": None}
        rendering = Rendering(prepared, "exact")
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
