"""Samples that the network is given as they are: tokens, and those of the user's own data sets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import Dataset

from raysuite.data.base import Batch, LatestCall, Slice
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.loaders.native import InProcesses
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError
from raysuite.nested import mapped
from raysuite.spec.loaders import NativeOptions


class _Batches(Dataset[Any]):
    """Whole batches by sample numbers."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        self._prepared, self._split = prepared, split

    @cached_property
    def source(self) -> TensorSource:  # opened where it is first read: in each loading process
        source = open_source(self._prepared, self._split)
        assert isinstance(source, TensorSource)
        return source

    def __getitem__(self, slice_: Slice) -> Any:
        try:
            return self.source.batch(slice_.ids.tolist(), slice_.draw)
        except DataError as error:
            # As a value: DataLoader wraps what a process raises into a second traceback.
            return error


class _Here:
    """Batches on demand or, with threads, by them and ahead."""

    def __init__(self, batches: _Batches, options: NativeOptions) -> None:
        self._batches, self._options = batches, options
        self._pool: ThreadPoolExecutor | None = None
        if options.threads:
            self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="raysuite-tensors")

    def load(self, slices: Sequence[Slice]) -> Iterator[Any]:
        """The batches of `slices`, in order. Raises DataError."""
        for batch in self._loaded(slices):
            if isinstance(batch, DataError):
                raise batch
            yield batch

    def _loaded(self, slices: Sequence[Slice]) -> Iterator[Any]:
        if self._pool is None:
            yield from map(self._batches.__getitem__, slices)
            return
        ahead: deque[Future[Any]] = deque()
        for slice_ in slices:
            ahead.append(self._pool.submit(self._batches.__getitem__, slice_))
            if len(ahead) > self._options.prefetch + self._options.threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if "source" in vars(self._batches):
            self._batches.source.close()


class TensorLoader:
    """Stacks samples in the worker, in its threads, or in processes of PyTorch's DataLoader."""

    def __init__(
        self, prepared: Prepared, split: Split, options: NativeOptions, device: torch.device
    ) -> None:
        self._device = device
        batches = _Batches(prepared, split)
        self._ahead = (
            InProcesses(batches, options, device.type == "cuda")
            if options.processes
            else _Here(batches, options)
        )
        self._call = LatestCall()

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        loaded = self._ahead.load(slices)
        for slice_ in self._call.each(slices):
            inputs, targets = mapped(
                next(loaded), lambda each: each.to(self._device, non_blocking=True)
            )
            yield Batch(inputs, targets, slice_.real, slice_.of_global)

    def close(self) -> None:
        self._ahead.close()
