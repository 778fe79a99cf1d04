"""Load samples that go to the network unchanged: tokens, and the user's own samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysuite.data.base import Batch, LatestCall, Slice, prefetched
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.loaders.memory import key_of
from raysuite.data.loaders.native import Batches, InProcesses
from raysuite.data.node_share import NodeShare
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError
from raysuite.nested import leaves, mapped, rebuilt
from raysuite.spec.loaders import MemoryOptions, NativeOptions


def _opened(prepared: Prepared, split: Split) -> TensorSource:
    source = open_source(prepared, split)
    assert isinstance(source, TensorSource)
    return source


def _load(source: TensorSource, slice_: Slice) -> Any:
    return source.batch(slice_.ids.tolist(), slice_.draw)


class _Here:
    """Prefetches batches in threads. With 0 threads, batches are loaded on demand."""

    def __init__(self, batches: Batches, options: NativeOptions | MemoryOptions) -> None:
        self._batches, self._options = batches, options
        self._pool: ThreadPoolExecutor | None = None
        if options.threads:
            self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="raysuite-tensors")

    def load(self, slices: Sequence[Slice]) -> Iterator[Any]:
        """The batches of `slices`, in order. Raises DataError if a sample is unreadable."""
        load: Callable[[Slice], Any] = self._batches.__getitem__
        loaded: Iterator[Any] = map(load, slices)
        if self._pool is not None:
            ahead = self._options.prefetch + self._options.threads
            loaded = prefetched(slices, self._pool, load, ahead)
        for batch in loaded:
            if isinstance(batch, DataError):
                raise batch
            yield batch

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if "source" in vars(self._batches):
            self._batches.source.close()


class TensorLoader:
    """Stacks samples in the training loop, in threads, or in processes of PyTorch's DataLoader."""

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        options: NativeOptions | MemoryOptions,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        self._device = device
        batches = Batches(self._source_of(prepared, split), _load)
        self._ahead = (
            InProcesses(batches, options, device.type == "cuda")
            if isinstance(options, NativeOptions) and options.processes
            else _Here(batches, options)
        )
        self._call = LatestCall()

    def _source_of(self, prepared: Prepared, split: Split) -> Callable[[], TensorSource]:
        return partial(_opened, prepared, split)

    def batches(self, slices: Sequence[Slice]) -> Iterator[Batch]:
        loaded = self._ahead.load(slices)
        for slice_ in self._call.each(slices):
            inputs, targets = mapped(
                next(loaded), lambda each: each.to(self._device, non_blocking=True)
            )
            yield Batch(inputs, targets, slice_.real, slice_.of_global)

    def close(self) -> None:
        self._ahead.close()


# The whole set, in memory that all workers of a node share.


class HeldLoader(TensorLoader):
    """Stacks samples that the first worker of a node has read once for all workers of the node."""

    def _source_of(self, prepared: Prepared, split: Split) -> Callable[[], TensorSource]:
        held = _Held(_opened(prepared, split), prepared, split)
        return lambda: held


def _tensor(value: Any) -> Tensor:
    """The value as a contiguous tensor, with the dtype that it has in a stacked batch."""
    if isinstance(value, Tensor):
        return value.detach().contiguous()
    return torch.from_numpy(np.array(value))


def _as_given(tensor: Tensor, like: Any) -> Any:
    """Convert a tensor from `_tensor` to the kind of `like`: a tensor, an array or a number."""
    if isinstance(like, Tensor):
        return tensor
    if isinstance(like, np.generic):  # keeps its dtype in a batch, unlike a number
        return tensor.numpy()[()]
    return tensor.numpy() if isinstance(like, np.ndarray) else tensor.item()


def _by_place(value: Any, place: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """The leaves of a sample, each under the keys and indices that lead to it through the sample's
    dictionaries and tuples."""
    if isinstance(value, Mapping):
        parts: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, tuple | list):
        parts = enumerate(value)
    else:
        return {place: value}
    return {k: v for key, each in parts for k, v in _by_place(each, (*place, key)).items()}


class _Held(TensorSource):
    """Samples in a folder in memory. N.bin has the bytes of each sample's N-th tensor, and N.npy
    has the shapes of these tensors."""

    def __init__(self, source: TensorSource, prepared: Prepared, split: Split) -> None:
        self._source, self._samples = source, prepared.samples(split)
        self._like = source.sample(0)
        source.stacked([self._like], 0)  # raises now if samples cannot be stacked
        self._first = [*map(_tensor, leaves(self._like))]
        self._read: list[list[Tensor]] = []
        self._share = NodeShare(key_of(source, prepared, split), self._size, self._write)
        self._read = []
        self._all = [self._mapped(number) for number in range(len(self._first))]

    def _size(self) -> int:
        """Read all samples, and return an upper bound of the bytes that `_write` writes."""
        kinds = [each.dtype for each in self._first]
        places = _by_place(self._like)
        for number in range(self._samples):
            parts = _by_place(self._source.sample(number))
            if parts.keys() != places.keys():
                raise DataError(
                    f"{self._source.place(number)} differs from the first sample in its keys or "
                    "in its number of parts; for the loader `memory`, give all samples the same "
                    "keys and parts, or use the loader `native`"
                )
            # dictionaries of equal keys may have them in another order
            found = [_tensor(parts[place]) for place in places]
            if [each.dtype for each in found] != kinds:
                raise DataError(
                    f"{self._source.place(number)} has the dtypes {_kinds(found)}, but the first "
                    f"sample has {_kinds(self._first)}; for the loader `memory`, give all samples "
                    "the same dtypes, or use the loader `native`"
                )
            self._read.append(found)
        return sum(each.nbytes + 8 * each.dim() for found in self._read for each in found) + 4096

    def _write(self, folder: Path) -> None:
        for number, tensors in enumerate(zip(*self._read, strict=True)):
            shapes = [tuple(each.shape) for each in tensors]
            if len({len(shape) for shape in shapes}) > 1:
                raise DataError(
                    f"the tensors of {self._source.place(0)} and of other samples have different "
                    "numbers of dimensions; for the loader `memory`, give them the same number, or "
                    "use the loader `native`"
                )
            np.save(folder / f"{number}.npy", np.array(shapes, np.int64))
            with (folder / f"{number}.bin").open("wb") as file:
                for each in tensors:
                    file.write(each.reshape(-1).view(torch.uint8).numpy().tobytes())

    def _mapped(self, number: int) -> tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]:
        """For tensor `number` of the samples: the values of all samples in one tensor, the shapes
        [samples, dimensions], and the index of each sample's first value [samples + 1]."""
        file, dtype = self._share.path / f"{number}.bin", self._first[number].dtype
        # mode "c" (copy on write) only because torch warns of read-only arrays
        size = file.stat().st_size
        held = np.memmap(file, np.uint8, "c") if size else np.empty(0, np.uint8)
        shapes = np.load(self._share.path / f"{number}.npy")
        ends = shapes.prod(1).cumsum()
        return torch.from_numpy(held).view(dtype), shapes, np.concatenate([[0], ends])

    def sample(self, number: int) -> Any:
        held = (
            values[begins[number] : begins[number + 1]].view(shapes[number].tolist())
            for values, shapes, begins in self._all
        )
        return rebuilt(self._like, map(_as_given, held, leaves(self._like)))

    def shown(
        self, samples: list[Any], numbers: Sequence[int], draw: tuple[int, int] | None
    ) -> list[Any]:
        return self._source.shown(samples, numbers, draw)

    def stacked(self, samples: list[Any], first: int) -> Any:
        return self._source.stacked(samples, first)

    def place(self, sample: int) -> str:
        return self._source.place(sample)

    def close(self) -> None:
        self._share.close()
        self._source.close()


def _kinds(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(each.dtype).removeprefix("torch.") for each in tensors)
