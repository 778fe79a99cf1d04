"""RunPlan: one run with all of its numbers, as pure data."""

from __future__ import annotations

from typing import Any, Literal

from raysuite.records.names import run_name
from raysuite.spec import ExperimentSpec
from raysuite.spec.base import Strict, later
from raysuite.spec.batches import AutoBatch
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.schedules import Schedule
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts


class RunPlan(Strict):
    """One run: everything that `train` needs, independent of how the run is started."""

    run_id: str
    """Unique in its experiment; depends on the index, the repeat and the spec without `track`."""
    index: int
    """Position in the order of execution, counted from 0."""
    repeat: int
    seed: int
    label: dict[str, Any]
    """The matrix keys of this run and their values."""
    spec: ExperimentSpec
    """The resolved spec of this run alone: no matrix, one repeat."""
    dataset: DatasetFacts
    task: TaskFacts = later(CLASSIFICATION)
    """The declarations of the spec's task."""

    workers: int
    """World size."""
    device: Literal["cpu", "gpu"]
    global_batch: int
    """Samples of one optimiser step over all workers."""
    micro_batch: int
    """Samples of one forward pass on one worker: global_batch / (replicas * accumulate)."""
    accumulate: int
    steps_per_epoch: int
    """Optimiser steps in an epoch, including a last step with the remaining samples."""
    total_steps: int
    peak_lr: float
    """Learning rate after warm-up and scaling."""
    memory_format: Literal["channels_last", "contiguous"] = "contiguous"
    """Memory format of images and convolutions, with `auto` resolved. Plans of earlier versions
    lack this field; their format was always contiguous."""

    @property
    def undecided(self) -> bool:
        """Whether trials will find the batch size; the plan has the smallest candidate until
        then."""
        return self.spec.auto is not None

    @property
    def batch_is_given(self) -> bool:
        """Whether the global batch is fixed; trials may still find the size of micro-batches."""
        return not isinstance(self.spec.training.batch_per_worker, AutoBatch)

    @property
    def replicas(self) -> int:
        """Number of copies of the network, which share the global batch."""
        return self.workers // self.spec.strategy.model_workers

    @property
    def epoch_units(self) -> int:
        """Size of an epoch in the unit of the throughput (images, samples or tokens)."""
        return self.units(self.dataset.train_samples)

    def units(self, samples: int) -> int:
        """Size of `samples` samples in the unit of the throughput."""
        return self.task.units(samples, self.dataset.sequence)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the pipeline; None if the strategy has no stages."""
        return self.spec.strategy.pipeline(self.accumulate)

    @property
    def title(self) -> str:
        """The run's name in reports, such as `ddp · native · 2 workers`."""
        plan = {"spec": self.spec.model_dump(include={"script", "strategy", "loader"})}
        return run_name(
            {**plan, "label": self.label, "workers": self.workers, "repeat": self.repeat}
        )
