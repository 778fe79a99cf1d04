"""NVIDIA DALI, fed with encoded bytes in our order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from torch.utils.dlpack import from_dlpack

from raysuite.data.base import Batch, Slice
from raysuite.data.pixels import decode
from raysuite.data.prepared import Prepared, Split
from raysuite.data.source import open_source
from raysuite.errors import DataError
from raysuite.spec.loaders import DaliOptions

_Encoded = tuple[list[NDArray[np.uint8]], list[int]]
"""The bytes of each image of a batch, and the labels."""


class DaliLoader:
    """Decodes, resizes and normalises in a DALI pipeline, on the CPU or on the GPU.

    DALI's own readers choose order, shards and padding themselves; an external source leaves
    them to us. One thread reads ahead, so that slow disks do not hold up the training thread.
    """

    def __init__(
        self, prepared: Prepared, split: Split, options: DaliOptions, device: torch.device
    ) -> None:
        if options.device == "gpu" and device.type != "cuda":
            raise DataError(
                f"DALI's gpu pipeline was asked for, and the worker's device is {device.type}; "
                "set loader.device to cpu, or resources.device to gpu"
            )
        self._prepared, self._options, self._device = prepared, options, device
        self._source = open_source(prepared, split)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="raysuite-dali-reader")
        self._pipeline: Pipeline | None = None
        self._feed: Iterator[_Encoded] = iter(())
        self._labels: deque[list[int]] = deque()

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        """One Batch per Slice, in order. The next call takes the loader over from this one.

        Raises DataError that names the file of an unreadable image.
        """
        if not slices:
            return
        pipeline = self._rewound(max(len(slice_.ids) for slice_ in slices))
        self._feed = feed = self._read_ahead(slices)
        for slice_ in slices:
            if self._feed is not feed:
                raise RuntimeError("a later call of batches() has taken this loader over")
            try:
                (images,) = pipeline.run(self._stream())
            except DataError:
                self._drop()
                raise
            except RuntimeError as error:
                self._drop()
                raise self._explained(slice_, error) from error
            labels = torch.tensor(self._labels.popleft(), dtype=torch.int64)
            yield Batch(
                # No copy: the tensor owns its memory, and the pipeline takes another.
                images=from_dlpack(images.as_tensor()),
                labels=labels.to(self._device, non_blocking=True),
                real=slice_.real,
                of_global=slice_.of_global,
            )

    def close(self) -> None:
        """End the pipeline and the reading thread, and close the files."""
        self._drop()
        self._reader.shutdown(cancel_futures=True)
        self._source.close()

    def _stream(self) -> torch.cuda.Stream | None:
        return torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None

    def _read_ahead(self, slices: Sequence[Slice]) -> Iterator[_Encoded]:
        pending: deque[Future[_Encoded]] = deque()
        for slice_ in slices:
            pending.append(self._reader.submit(self._read, slice_.ids))
            if len(pending) > self._options.prefetch:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _read(self, ids: NDArray[np.int64]) -> _Encoded:
        samples = [self._source.read(sample) for sample in ids.tolist()]
        images = [np.frombuffer(data, np.uint8) for data, _ in samples]
        return images, [label for _, label in samples]

    def _next(self) -> list[NDArray[np.uint8]]:
        """What DALI calls for each batch; StopIteration ends its epoch."""
        images, labels = next(self._feed)
        self._labels.append(labels)
        return images

    def _rewound(self, largest: int) -> Pipeline:
        """A pipeline at the start of an epoch, for batches of up to `largest` samples."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.max_batch_size < largest:
            self._drop()
            self._pipeline = pipeline = self._build(largest)
            return pipeline
        self._feed = iter(())  # the epoch before may have been left midway: pass over its rest
        try:
            while True:
                pipeline.run()
        except StopIteration:
            pipeline.reset()
        self._labels.clear()
        return pipeline

    def _drop(self) -> None:
        self._feed = iter(())
        self._labels.clear()
        self._pipeline = None

    def _build(self, batch: int) -> Pipeline:
        prepared, options = self._prepared, self._options
        size, grey = prepared.facts.image_size, prepared.facts.channels == 1
        stream = self._stream()
        pipeline = Pipeline(
            batch_size=batch,
            num_threads=options.threads,
            device_id=None if stream is None else stream.device_index,
            prefetch_queue_depth=options.prefetch,
        )
        with pipeline:
            encoded = fn.external_source(
                source=self._next, batch=True, ndim=1, dtype=types.DALIDataType.UINT8
            )
            images: Any = fn.decoders.image(
                encoded,
                device="mixed" if options.device == "gpu" else "cpu",
                output_type=types.DALIImageType.GRAY if grey else types.DALIImageType.RGB,
                adjust_orientation=False,  # as Pillow reads it
                jpeg_fancy_upsampling=True,  # as libjpeg does, on the GPU too
            )
            if prepared.resize:
                images = fn.resize(
                    images,
                    resize_x=size,
                    resize_y=size,
                    interp_type=types.DALIInterpType.INTERP_LINEAR,
                    antialias=True,
                )
            images = fn.crop_mirror_normalize(
                images,
                dtype=types.DALIDataType.FLOAT,
                output_layout="CHW",
                mean=[255 * value for value in prepared.mean],
                std=[255 * value for value in prepared.std],
            )
            pipeline.set_outputs(images if stream is None else images.gpu())
        pipeline.build()
        return pipeline

    def _explained(self, slice_: Slice, error: Exception) -> DataError:
        """The error that names the image: DALI names its place in the batch at best."""
        for sample in slice_.ids.tolist():
            try:
                decode(self._source, sample, self._prepared)
            except DataError as found:
                return found
        first = self._source.place(int(slice_.ids[0]))
        return DataError(f"DALI failed on the {len(slice_.ids)} images from {first} on: {error}")
