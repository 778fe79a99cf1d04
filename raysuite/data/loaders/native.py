"""PyTorch's DataLoader, with our order in the place of its sampler."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from raysuite.data.base import Batch, Slice
from raysuite.data.prepared import Prepared, Split
from raysuite.data.reading import read, shown
from raysuite.data.source import Source, open_source
from raysuite.errors import DataError, RunError
from raysuite.spec.loaders import NativeOptions

_Decoded = tuple[Tensor, Tensor]
"""Images [b, H, W, C] uint8 and labels [b] int64."""


class NativeLoader:
    """Decodes with Pillow, in this process or in processes that live as long as the loader."""

    def __init__(
        self, prepared: Prepared, split: Split, options: NativeOptions, device: torch.device
    ) -> None:
        self._device = device
        self._order = _Order()
        self._images = _Images(prepared, split)
        self._shift = _per_channel(prepared.mean, device)
        self._scale = _per_channel(prepared.std, device).reciprocal()
        several = options.processes > 0
        self._loader: DataLoader[_Decoded | DataError] = DataLoader(
            self._images,
            sampler=self._order,
            batch_size=None,  # a "sample" of the sampler is a whole Slice
            num_workers=options.processes,
            prefetch_factor=options.prefetch if several else None,
            persistent_workers=several,
            multiprocessing_context=_context() if several else None,
            pin_memory=device.type == "cuda",
            # The default generator belongs to the model: a loader that drew from it would
            # change dropout, and so would the choice of the loader.
            generator=torch.Generator(),
        )

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        """One Batch per Slice, in order. The next call takes the loader over from this one.

        Raises DataError that names the file of an unreadable image, and RunError where a
        loading process died.
        """
        self._order.slices = asked = list(slices)
        loaded = iter(self._loader)
        for slice_ in slices:
            if self._order.slices is not asked:
                raise RuntimeError("a later call of batches() has taken this loader over")
            try:
                decoded = next(loaded)
            except (RuntimeError, OSError, EOFError) as error:
                raise RunError(
                    f"a loading process of the native loader died ({error}); often memory or "
                    "/dev/shm ran out: lower loader.processes or loader.prefetch"
                ) from error
            if isinstance(decoded, DataError):
                raise decoded
            images, labels = (part.to(self._device, non_blocking=True) for part in decoded)
            yield Batch(self._normalised(images), labels, slice_.real, slice_.of_global)

    def close(self) -> None:
        """End the loading processes and close the files."""
        # DataLoader has no close: its processes end when its iterator is collected, which an
        # exception's traceback can put off, and with it a wait of seconds to a bad moment.
        iterator: Any = self._loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()
        self._loader._iterator = None
        self._images.close()

    def _normalised(self, images: Tensor) -> Tensor:
        floats = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return floats.sub_(self._shift).mul_(self._scale)


class _Order(Sampler[Slice]):
    """The batches to come."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.slices)

    def __len__(self) -> int:
        return len(self.slices)


class _Images(Dataset[_Decoded | DataError]):
    """Whole batches by sample numbers."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        self._prepared = prepared
        self._split = split

    @cached_property
    def _source(self) -> Source:  # opened where it is first read: in each loading process
        return open_source(self._prepared, self._split)

    def __getitem__(self, slice_: Slice) -> _Decoded | DataError:
        try:
            got = read(self._source, self._prepared, slice_)
            images = shown(self._source, self._prepared, slice_, got)
        except DataError as error:
            # As a value: DataLoader wraps what a process raises into a second traceback.
            return error
        return torch.from_numpy(images), torch.from_numpy(got.labels)

    def close(self) -> None:
        source = self.__dict__.pop("_source", None)
        if source is not None:
            source.close()


def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """[C, 1, 1] fp32, in the scale of pixels, 0 to 255."""
    return (torch.tensor(values) * 255).view(-1, 1, 1).to(device)


def _context() -> multiprocessing.context.ForkServerContext:
    # A training process has threads (CUDA, NCCL, Gloo, Ray) and a fork of it may hang. The
    # server imports this module once, and its children start in milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
