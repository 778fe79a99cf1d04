"""Samples that the network is given as they are: tokens, and those of the user's own data sets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from raysuite.data.base import Batch, Slice
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.loaders.native import process_context
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError, RunError
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
            return self.source.batch(slice_.ids.tolist())
        except DataError as error:
            # As a value: DataLoader wraps what a process raises into a second traceback.
            return error


class TensorLoader:
    """Stacks samples in the worker, in its threads, or in processes of PyTorch's DataLoader."""

    def __init__(
        self, prepared: Prepared, split: Split, options: NativeOptions, device: torch.device
    ) -> None:
        self._device, self._options = device, options
        self._batches = _Batches(prepared, split)
        self._order: list[Slice] = []
        self._loader: DataLoader[Any] | None = None
        self._pool: ThreadPoolExecutor | None = None
        if options.processes:
            self._loader = DataLoader(
                self._batches,
                sampler=self._order,
                batch_size=None,  # a "sample" of the sampler is a whole Slice
                num_workers=options.processes,
                prefetch_factor=options.prefetch,
                persistent_workers=True,
                multiprocessing_context=process_context(),
                pin_memory=device.type == "cuda",
                generator=torch.Generator(),  # the default one belongs to the model
            )
        elif options.threads:
            self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="raysuite-tensors")
        self._asked: object = None

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        self._asked = asked = object()
        loaded = self._loaded(slices)
        for slice_ in slices:
            if self._asked is not asked:
                raise RuntimeError("a later call of batches() has taken this loader over")
            batch = next(loaded)
            if isinstance(batch, DataError):
                raise batch
            inputs, targets = mapped(batch, lambda each: each.to(self._device, non_blocking=True))
            yield Batch(inputs, targets, slice_.real, slice_.of_global)

    def _loaded(self, slices: Sequence[Slice]) -> Iterator[Any]:
        if self._loader is not None:
            yield from self._by_processes(slices)
        elif self._pool is None:
            yield from map(self._batches.__getitem__, slices)
        else:
            ahead: deque[Future[Any]] = deque()
            for slice_ in slices:
                ahead.append(self._pool.submit(self._batches.__getitem__, slice_))
                if len(ahead) > self._options.prefetch + self._options.threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _by_processes(self, slices: Sequence[Slice]) -> Iterator[Any]:
        assert self._loader is not None
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
            yield batch

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._loader is not None:
            # DataLoader has no close: its processes end when its iterator is collected
            iterator: Any = self._loader._iterator
            if iterator is not None:
                iterator._shutdown_workers()
            self._loader._iterator = None
        if "source" in vars(self._batches):
            self._batches.source.close()
