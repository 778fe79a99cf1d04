"""PipeDream and PipeDream-2BW: the pipeline stays full from step to step.

A stage of worker w makes its backward pass of micro-batch k after later forward passes, and with
the weights of its own forward pass of k, whatever updates came in between: they are stashed
(Narayanan et al. 2019, "PipeDream", section 3.3; 2021, "Memory-Efficient Pipeline-Parallel DNN
Training", section 3.1). The gradient is applied to the newest weights. The schedule decides which
version a pass uses. BatchNorm's running statistics have one version: those of the newest pass.

Autograd keeps a tensor of a weight for the backward pass. Here its place and version are kept
instead, which are looked up in the backward pass, so that an update may change the weights
in place once the older version has been copied. So n versions take n times the weights' memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from raysuite.parallel.base import set_lr
from raysuite.parallel.pipeline.engine import PipelineEngine
from raysuite.spec.schedules import Operation

if TYPE_CHECKING:
    from raysuite.data.base import Batch


class AsynchronousEngine(PipelineEngine):
    """Each step is one update of each stage, some of which come in later calls, or in `drain`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stash = Stash(list(self.model.parameters()))
        self._steps = 0
        """Since the pipeline was empty."""
        self._rates: list[float] = []
        self._newest = -1
        """The micro-batch of the last forward pass."""

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        self._rates.append(lr)
        self._steps += 1
        return self.execute(self.schedule.step(self.worker, self._steps - 1), micro_batches)

    def drain(self) -> None:
        if self._steps:
            self.execute(self.schedule.drain(self.worker, self._steps), [])
        self._sent()
        self._steps, self._newest = 0, -1
        self._rates.clear()
        self.stash.restart()

    def execute(self, operations: Iterator[Operation], micro_batches: Sequence[Batch]) -> Tensor:
        total = super().execute(operations, micro_batches)
        # those before have been received: their micro-batches have come back since
        self._sent(left=2 * self.schedule.micro_batches + 4 * self.schedule.workers)
        return total

    def graph(self, operation: Operation) -> Any:
        self._newest = operation.micro_batch
        return self._stashed(operation)

    @contextmanager
    def _stashed(self, operation: Operation) -> Iterator[None]:
        kept: dict[int, int] = {}
        with self.stash.used(operation.version, kept):
            yield
        if self.measured and self.measured.memory:
            self._count(operation, kept)

    @property
    def versions(self) -> int:
        return self.stash.most

    def update(self, operation: Operation) -> None:
        self.average_gradients()
        after = self.schedule.version(self.stage, self._newest + self.schedule.replicas[self.stage])
        under_way = [
            self.schedule.version(stage, micro_batch) for stage, micro_batch in self._under_way
        ]
        with self.stash.changed(min(after, *under_way) if under_way else after):
            set_lr(self.optimizer, self._rates[operation.version])
            self.take_step()
        self.optimizer.zero_grad(set_to_none=True)


class Stash:
    """Versions of weights: the newest is the weights themselves, older ones are copies."""

    def __init__(self, weights: list[Tensor]) -> None:
        self._weights = weights
        self._version = 0
        """Updates since the start."""
        self._older: dict[int, list[Tensor]] = {}
        self.most = 1
        """Versions that were held at a time."""

    def of(self, version: int) -> list[Tensor]:
        """The weights of a version."""
        return self._weights if version == self._version else self._older[version]

    @contextmanager
    def used(self, version: int, kept: dict[int, int]) -> Iterator[None]:
        """In this context, forward passes use `version`, and so will their backward passes. Other
        tensors that are kept for these are added to `kept`: data pointer -> bytes."""
        newest = [each.data for each in self._weights]
        values = [each.data for each in self.of(version)]
        places = {
            each.untyped_storage().data_ptr(): index
            for index, each in enumerate(values)
            if each.numel()
        }

        def pack(value: Tensor) -> Tensor | _Kept:
            storage = value.untyped_storage()
            index = places.get(storage.data_ptr())
            if index is None:
                kept[storage.data_ptr()] = storage.nbytes()
                return value.detach()
            offset = int(value.storage_offset() - values[index].storage_offset())
            return _Kept(index, version, value.shape, value.stride(), offset)

        for weight, value in zip(self._weights, values, strict=True):
            weight.data = value
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
                yield
        finally:
            for weight, value in zip(self._weights, newest, strict=True):
                weight.data = value

    def _unpack(self, value: Tensor | _Kept) -> Tensor:
        if isinstance(value, Tensor):
            return value
        weight = self.of(value.version)[value.index].detach()
        return weight.as_strided(value.size, value.stride, weight.storage_offset() + value.offset)

    @contextmanager
    def changed(self, oldest: int) -> Iterator[None]:
        """An update in it makes the next version. `oldest`: of those that are still needed."""
        if oldest <= self._version:
            self._older[self._version] = [each.detach().clone() for each in self._weights]
        yield
        self._version += 1
        self._older = {key: held for key, held in self._older.items() if key >= oldest}
        self.most = max(self.most, 1 + len(self._older))

    def restart(self) -> None:
        """The pipeline is empty: count from here."""
        self._version = 0
        self._older.clear()


@dataclass(frozen=True)
class _Kept:
    """In the place of a tensor of weights, or a view of one."""

    index: int
    version: int
    size: Sequence[int]
    stride: Sequence[int]
    offset: int
    """Beyond where the weights begin."""
