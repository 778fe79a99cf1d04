"""Decode on the CPU, in threads of the worker or in processes of PyTorch's DataLoader."""

from __future__ import annotations

import itertools
import math
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from raysuite.data.base import Batch, LatestCall, Slice
from raysuite.data.formats import Source, open_source
from raysuite.data.normalise import Buffers, Normalise
from raysuite.data.prepared import Prepared, Split
from raysuite.data.rendering import Rendering
from raysuite.errors import DataError, RunError
from raysuite.spec.loaders import NativeOptions

Loaded = tuple[Tensor, Tensor]
"""Images, uint8 [b, H, W, C] or fp32 [b, C, H, W], and labels [b] int64."""
Room = Callable[[int], Tensor]
"""Number of images -> memory for a batch of that many images."""

_PART = 16
"""Images per task. Larger tasks leave threads idle; smaller tasks take more time per image."""


class InThreads:
    """Prefetches batches; each batch is split among several threads. With 0 threads, batches are
    loaded on demand."""

    def __init__(
        self, rendering: Rendering, split: Split, options: NativeOptions, room: Room
    ) -> None:
        self._rendering, self._room = rendering, room
        self._threads, self._prefetch = options.threads, options.prefetch
        self._source = open_source(rendering.prepared, split)
        self._pool = ThreadPoolExecutor(max(1, self._threads), thread_name_prefix="raysuite-native")

    def load(self, slices: Sequence[Slice]) -> Iterator[Loaded]:
        """The batches of `slices`, in order. Raises DataError if a sample is unreadable."""
        if not self._threads:
            for slice_ in slices:
                images = self._room(len(slice_.ids))
                labels = self._rendering.write(self._source, slice_, images.numpy())
                yield images, torch.from_numpy(labels)
            return
        coming = iter(slices)
        begun: deque[tuple[Tensor, list[Future[Any]]]] = deque()
        try:
            for slice_ in slices:
                parts = math.ceil(len(slice_.ids) / _PART)
                # `prefetch` batches, and as many more as keep all threads busy
                ahead = self._prefetch + math.ceil(self._threads / parts)
                for next_ in itertools.islice(coming, max(0, 1 + ahead - len(begun))):
                    begun.append(self._begin(next_))
                images, tasks = begun.popleft()
                labels = np.concatenate([task.result() for task in tasks])
                yield images, torch.from_numpy(labels)
        finally:
            for _, tasks in begun:
                for task in tasks:
                    task.cancel()

    def _begin(self, slice_: Slice) -> tuple[Tensor, list[Future[Any]]]:
        images = self._room(len(slice_.ids))
        out = images.numpy()
        tasks = []
        for start in range(0, len(slice_.ids), _PART):
            rows = slice(start, start + _PART)
            part = Slice(slice_.ids[rows], 0, 0, slice_.draw)
            tasks.append(self._pool.submit(self._rendering.write, self._source, part, out[rows]))
        return images, tasks

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._source.close()


class InProcesses:
    """PyTorch's DataLoader, with raysuite's list of Slices as its sampler."""

    def __init__(self, batches: Batches, options: NativeOptions, pinned: bool) -> None:
        self._order: list[Slice] = []
        self._loader: DataLoader[Any] = DataLoader(
            batches,
            sampler=self._order,
            batch_size=None,  # each "sample" of the sampler is a whole Slice
            num_workers=options.processes,
            prefetch_factor=options.prefetch,
            persistent_workers=True,
            multiprocessing_context=process_context(),
            pin_memory=pinned,
            # The model uses the default generator. If the loader used it too, dropout, and so the
            # results, would depend on the loader.
            generator=torch.Generator(),
        )

    def load(self, slices: Sequence[Slice]) -> Iterator[Any]:
        """The batches of `slices`, in order.

        Raises DataError if a sample is unreadable, and RunError if a process died.
        """
        self._order[:] = slices
        loaded = iter(self._loader)
        for _ in slices:
            try:
                batch = next(loaded)
            except (RuntimeError, OSError, EOFError) as error:
                raise RunError(
                    f"a loading process of the native loader died ({error}); often memory or "
                    "/dev/shm ran out: lower loader.processes or loader.prefetch"
                ) from error
            if isinstance(batch, DataError):
                raise batch
            yield batch

    def close(self) -> None:
        # DataLoader has no close: its processes end when its iterator is garbage-collected, which
        # an exception's traceback can delay by seconds.
        iterator: Any = self._loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()
        self._loader._iterator = None


class Batches(Dataset[Any]):
    """`self[slice_]` is the whole batch that `load(source, slice_)` returns, or the DataError that
    it raises. The error is returned, because DataLoader adds its own traceback to exceptions that
    its processes raise."""

    def __init__(self, open_: Callable[[], Any], load: Callable[[Any, Slice], Any]) -> None:
        self._open, self._load = open_, load

    @cached_property
    def source(self) -> Any:  # opened on first use, in each loading process
        return self._open()

    def __getitem__(self, slice_: Slice) -> Any:
        try:
            return self._load(self.source, slice_)
        except DataError as error:
            return error


def _load(rendering: Rendering, dtype: torch.dtype, source: Source, slice_: Slice) -> Loaded:
    shape = rendering.shape(len(slice_.ids), dtype)
    # In shared memory, like the results of torch's collate: DataLoader copies anything else.
    storage = torch.UntypedStorage._new_shared(math.prod(shape) * dtype.itemsize)
    images = torch.empty(0, dtype=torch.uint8).set_(storage).view(dtype).view(shape)
    return images, torch.from_numpy(rendering.write(source, slice_, images.numpy()))


def process_context() -> multiprocessing.context.ForkServerContext:
    """Start loading processes from a fork server."""
    # A training process has threads (CUDA, NCCL, Gloo, Ray), so a forked child may hang. The server
    # imports this module once, and its children start in milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


class NativeLoader:
    """Decodes with libjpeg-turbo or Pillow, and resizes like torch's `interpolate`. The option
    `transport` decides whether images are normalised by the loading threads or on the device."""

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        options: NativeOptions,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"
        self._rendering = rendering = Rendering(prepared, options.decode)
        self._dtype = _transport(options, self._on_gpu)
        self._pixels, self._values = Buffers(np.uint8), Buffers(np.float32)
        self._normalise = Normalise(rendering, device, channels_last)
        batches = Batches(
            partial(open_source, prepared, split), partial(_load, rendering, self._dtype)
        )
        self._ahead = (
            InProcesses(batches, options, self._on_gpu)
            if options.processes
            else InThreads(rendering, split, options, self._room)
        )
        self._call = LatestCall()

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        loaded = self._ahead.load(slices)
        for slice_ in self._call.each(slices):
            images, labels = next(loaded)
            yield Batch(
                self._normalised(images),
                labels.to(self._device, non_blocking=True),
                slice_.real,
                slice_.of_global,
            )

    def close(self) -> None:
        self._ahead.close()

    def _room(self, count: int) -> Tensor:
        shape = self._rendering.shape(count, self._dtype)
        if self._on_gpu:  # torch reuses pinned memory
            return torch.empty(shape, dtype=self._dtype, pin_memory=True)
        buffers = self._pixels if self._dtype == torch.uint8 else self._values
        return torch.from_numpy(buffers.take(shape))

    def _normalised(self, images: Tensor) -> Tensor:
        if images.dtype == torch.float32:
            return images.to(self._device, non_blocking=True)
        return self._normalise.images(images)


def _transport(options: NativeOptions, on_gpu: bool) -> torch.dtype:
    if options.transport == "auto":
        return torch.float32 if options.threads and not on_gpu else torch.uint8
    return torch.uint8 if options.transport == "uint8" else torch.float32
