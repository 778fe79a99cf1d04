"""Load with NVIDIA DALI, in raysuite's order of samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from torch.utils.dlpack import from_dlpack

from raysuite.data.base import Batch, LatestCall, Slice, prefetched
from raysuite.data.formats import open_source
from raysuite.data.pixels import decode, encode, header_of
from raysuite.data.prepared import Prepared, Split
from raysuite.data.reading import Read, read
from raysuite.errors import DataError
from raysuite.spec.loaders import DaliOptions


def encoded(data: bytes, channels: int, place: str) -> NDArray[np.uint8]:
    """The encoded image for DALI, converted to PNG if decoders read the original differently."""
    if header_of(data, place).plain:
        return np.frombuffer(data, np.uint8)
    return np.frombuffer(encode(decode(data, channels, place)), np.uint8)


KINDS = {
    "corner": (types.DALIDataType.INT32, 1),
    "extent": (types.DALIDataType.INT32, 1),
    "low": (types.DALIDataType.FLOAT, 1),
    "high": (types.DALIDataType.FLOAT, 1),
    "flip": (types.DALIDataType.INT32, 0),
}
"""dtype and number of dimensions of each value that `cut` returns for a sample."""


def inputs_of(prepared: Prepared) -> list[str]:
    """The keys of the dictionary from `cut` that the pipeline needs for this data set."""
    names = ["low", "high"] if prepared.resizes else []
    if prepared.resizes or prepared.augment == "pad_crop_flip":
        names = ["corner", "extent", *names]
    return names if prepared.augment == "none" else [*names, "flip"]


def cut(got: Read) -> dict[str, NDArray[Any]]:
    """The views as inputs of the pipeline. `corner` and `extent` [b, 2]: the first pixel that the
    view's box touches, and the number of touched pixels; `low` and `high` [b, 2]: the box's edges
    relative to `corner`; all in the order (vertical, horizontal). `flip` [b]: 1 if the view is
    mirrored."""
    low = got.views.boxes[:, [1, 0]]
    high = low + got.views.boxes[:, [3, 2]]
    corner = np.floor(low)
    return {
        "corner": np.ascontiguousarray(corner, np.int32),
        "extent": np.ascontiguousarray(np.ceil(high) - corner, np.int32),
        "low": np.ascontiguousarray(low - corner, np.float32),
        "high": np.ascontiguousarray(high - corner, np.float32),
        "flip": got.views.flips.astype(np.int32),
    }


_Fed = tuple[list[Any], NDArray[np.int64]]
"""The inputs of the pipeline for one batch, and the labels."""


class DaliLoader:
    """Decodes, resizes and normalises in a DALI pipeline, on the CPU or on the GPU.

    DALI's own readers would choose the order, the shards and the padding. Here raysuite chooses
    them, and feeds the pipeline through an external source. One thread reads ahead, so that slow
    disks do not block the training thread.
    """

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        options: DaliOptions,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        if options.device == "gpu" and device.type != "cuda":
            raise DataError(
                f"loader.device is gpu, but the worker's device is {device.type}; set "
                "loader.device to cpu, or resources.device to gpu"
            )
        self._prepared, self._options, self._device = prepared, options, device
        self._channels_last = channels_last
        self._source = open_source(prepared, split)
        self._fed = inputs_of(prepared)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="raysuite-dali-reader")
        self._pipeline: Pipeline | None = None
        self._feed: Iterator[_Fed] = iter(())
        self._labels: deque[NDArray[np.int64]] = deque()
        self._call = LatestCall()

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        if not slices:
            return
        pipeline = self._rewound(max(len(slice_.ids) for slice_ in slices))
        self._feed = prefetched(slices, self._reader, self._read, self._options.prefetch)
        for slice_ in self._call.each(slices):
            try:
                (images,) = pipeline.run(self._stream())
            except DataError:
                self._drop()
                raise
            except RuntimeError as error:
                self._drop()
                raise self._explained(slice_, error) from error
            labels = torch.from_numpy(self._labels.popleft())
            # No copy is needed: DALI does not write the next batch to the memory of this tensor.
            written = from_dlpack(images.as_tensor())
            yield Batch(
                images=written.permute(0, 3, 1, 2) if self._channels_last else written,
                labels=labels.to(self._device, non_blocking=True),
                real=slice_.real,
                of_global=slice_.of_global,
            )

    def close(self) -> None:
        self._drop()
        self._reader.shutdown(cancel_futures=True)
        self._source.close()

    def _stream(self) -> torch.cuda.Stream | None:
        return torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None

    def _read(self, slice_: Slice) -> _Fed:
        got = read(self._source, self._prepared, slice_)
        channels = self._prepared.facts.channels
        places = map(self._source.place, slice_.ids.tolist())
        images = [
            encoded(sample, channels, place)
            if isinstance(sample, bytes)
            else decode(sample, channels, place)
            for sample, place in zip(got.samples, places, strict=True)
        ]
        parts = cut(got)
        return [images, *(parts[name] for name in self._fed)], got.labels

    def _next(self) -> list[Any]:
        """The inputs of the next batch, for DALI. StopIteration ends DALI's epoch."""
        inputs, labels = next(self._feed)
        self._labels.append(labels)
        return inputs

    def _rewound(self, largest: int) -> Pipeline:
        """The pipeline, reset to the start of an epoch, for batches of up to `largest` samples."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.max_batch_size < largest:
            self._drop()
            self._pipeline = pipeline = self._build(largest)
            return pipeline
        self._feed = iter(())  # the last epoch may be incomplete: skip its remaining batches
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
            inputs = self._inputs()
            images = self._decoded(inputs)
            if grey and prepared.encoded:
                # DALI's decoder would give another grey: it uses a JPEG's stored luma, and applies
                # a PNG's gamma.
                images = fn.color_space_conversion(
                    images, image_type=types.DALIImageType.RGB, output_type=types.DALIImageType.GRAY
                )
            if prepared.resizes:
                images = fn.resize(
                    images,
                    size=[size, size],
                    roi_start=inputs["low"],
                    roi_end=inputs["high"],
                    interp_type=types.DALIInterpType.INTERP_LINEAR,
                    antialias=True,
                )
            images = fn.crop_mirror_normalize(
                images,
                dtype=types.DALIDataType.FLOAT,
                output_layout="HWC" if self._channels_last else "CHW",
                mirror=inputs.get("flip", 0),
                mean=[255 * value for value in prepared.mean],
                std=[255 * value for value in prepared.std],
            )
            pipeline.set_outputs(images if stream is None else images.gpu())
        pipeline.build()
        return pipeline

    def _inputs(self) -> dict[str, Any]:
        """The pipeline's input nodes by name: see `cut`."""
        encoded = self._prepared.encoded
        kinds = {name: KINDS[name] for name in self._fed}
        nodes = fn.external_source(
            source=self._next,
            num_outputs=1 + len(kinds),
            batch=True,
            dtype=[types.DALIDataType.UINT8, *(dtype for dtype, _ in kinds.values())],
            ndim=[1 if encoded else 3, *(ndim for _, ndim in kinds.values())],
            layout=["" if encoded else "HWC", *("" for _ in kinds)],
        )
        return dict(zip(["image", *kinds], nodes, strict=True))

    def _decoded(self, inputs: dict[str, Any]) -> Any:
        """The decoded and cropped pixels; if possible, only the crop is decoded."""
        gpu = self._options.device == "gpu"
        image, corner, extent = inputs["image"], inputs.get("corner"), inputs.get("extent")
        if not self._prepared.encoded:
            pixels = image.gpu() if gpu else image
        else:
            decode_as: dict[str, Any] = {
                "device": "mixed" if gpu else "cpu",
                "output_type": types.DALIImageType.RGB,
                "adjust_orientation": False,
                "jpeg_fancy_upsampling": True,  # as in libjpeg, also on the GPU
            }
            if corner is not None and self._prepared.augment != "pad_crop_flip":
                return fn.decoders.image_slice(image, corner, extent, axes=[0, 1], **decode_as)
            pixels = fn.decoders.image(image, **decode_as)
        if corner is None:
            return pixels
        return fn.slice(
            pixels, corner, extent, axes=[0, 1], out_of_bounds_policy="pad", fill_values=0
        )

    def _explained(self, slice_: Slice, error: Exception) -> DataError:
        """An error that names the unreadable image, which DALI's own error does not do."""
        channels = self._prepared.facts.channels
        try:
            got = read(self._source, self._prepared, slice_)
            for number, sample in zip(slice_.ids.tolist(), got.samples, strict=True):
                decode(sample, channels, self._source.place(number))
        except DataError as found:
            return found
        first = self._source.place(int(slice_.ids[0]))
        return DataError(
            f"DALI failed on a batch of {len(slice_.ids)} images, of which {first} is the first: "
            f"{error}"
        )
