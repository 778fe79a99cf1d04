"""PipeDream and PipeDream-2BW: the pipeline stays full from step to step.

A stage updates its weights between the forward and the backward pass of a micro-batch. Both passes
use the weights of the forward pass, which are stashed (Narayanan et al. 2019, "PipeDream", section
3.3; 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1). The gradient is applied
to the newest weights. The schedule decides which version a pass uses. BatchNorm's running
statistics have only one version, that of the newest pass.

Autograd saves the weight tensors for the backward pass, but no copies of their values. Before a
backward pass, the stash therefore sets the tensors to the values of the earlier version. If the
current version is needed later, the next update changes a copy of the weights. n versions take n
times the memory of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from raysuite.parallel.base import set_lr
from raysuite.parallel.pipeline.engine import PipelineEngine
from raysuite.spec.schedules import Operation

if TYPE_CHECKING:
    from raysuite.data.base import Batch


class AsynchronousEngine(PipelineEngine):
    """Each step causes one update of each stage, but some of these updates are made only in later
    steps or in `drain`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stash = Stash(list(self.model.parameters()))
        self._steps = 0
        """The number of steps since the pipeline was empty."""
        self._rates: list[float] = []
        self._newest = -1
        """The number of the micro-batch in the last forward pass; -1 if there was none."""

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
        # earlier sends have ended, because the gradients of their micro-batches have returned
        self._sent(left=2 * self.schedule.micro_batches + 4 * self.schedule.workers)
        return total

    def _pass_forward(self, operation: Operation, batch: Batch, given: Tensor) -> None:
        self._newest = operation.micro_batch
        with self.stash.used(operation.version):
            super()._pass_forward(operation, batch, given)

    def _pass_backward(self, operation: Operation) -> None:
        with self.stash.used(operation.version):
            super()._pass_backward(operation)

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
        self.optimizer.zero_grad()


class Stash:
    """Versions of the weights: the newest is in the model's tensors, older versions are here."""

    def __init__(self, weights: list[Tensor]) -> None:
        self._weights = weights
        self._version = 0
        """The number of updates since the pipeline was empty."""
        self._older: dict[int, list[Tensor]] = {}
        self.most = 1
        """Largest number of versions in memory at the same time."""

    def of(self, version: int) -> list[Tensor]:
        """The weights of an older version."""
        return self._older[version]

    @contextmanager
    def used(self, version: int) -> Iterator[None]:
        """Set the weights to those of `version` within the context."""
        if version == self._version:
            yield
            return
        newest = self._given(self.of(version))
        try:
            yield
        finally:
            self._given(newest)

    @contextmanager
    def changed(self, oldest: int) -> Iterator[None]:
        """Within the context, an update of the weights makes a new version. `oldest`: the oldest
        version that is still needed."""
        if oldest <= self._version:
            self._older[self._version] = self._given([each.data.clone() for each in self._weights])
        # without this, autograd refuses later backward passes, as weights were changed in place
        with _unsafe_preserve_version_counter(tuple(self._weights)):
            yield
        self._version += 1
        self._older = {key: held for key, held in self._older.items() if key >= oldest}
        self.most = max(self.most, 1 + len(self._older))

    def restart(self) -> None:
        """Count versions from 0 again, and free the older versions; the pipeline must be empty."""
        self._version = 0
        self._older.clear()

    def _given(self, values: list[Tensor]) -> list[Tensor]:
        """Set the weights to these values, without a copy; return the previous values."""
        before = [each.data for each in self._weights]
        for weight, value in zip(self._weights, values, strict=True):
            weight.data = value
        return before
