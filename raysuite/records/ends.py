"""How a run ends, and how an attempt at it does."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysuite.records.base import RecordBase
from raysuite.records.confusion import ClassFigures

StopReason = Literal["time_limit", "preempted", "interrupted", "down", "interval"]
"""time_limit: the allocation's time is nearly over. preempted: it is taken away for another job.
interrupted: a person asked for it. down: the cluster is being ended. interval: a sweep's scheduler
compares its trials after this epoch."""

FailReason = Literal[
    "gate",
    "error",
    "lost",
    "node_lost",
    "interrupted",
    "out_of_memory",
    "deadline",
    "infeasible",
    "diverged",
    "damaged",
]
"""gate: the arithmetic is wrong. error: an exception. lost: workers died too often. node_lost: a
node went away too often, or did not come back. interrupted: a person ended it without a
checkpoint. out_of_memory: a device's memory, or the host's, did not hold it. deadline: a trial took
longer than its sweep allows. infeasible: the values of a trial do not go together, so that it was
never started. diverged: losses or weights are not finite; the time of its steps still counts.
damaged: its journal is, so that nothing of it counts; found on reading, never written."""

STOPPED: dict[StopReason, str] = {
    "time_limit": "time limit",
    "preempted": "preempted",
    "interrupted": "interrupted",
    "down": "the cluster ended",
    "interval": "waits for the others",
}
"""Why a run was stopped, in words."""

FAILED: dict[FailReason, str] = {
    "gate": "by the gate",
    "error": "",
    "lost": "workers lost",
    "node_lost": "node lost",
    "interrupted": "interrupted",
    "out_of_memory": "out of memory",
    "deadline": "deadline",
    "infeasible": "cannot be",
    "diverged": "diverged",
    "damaged": "journal damaged",
}
"""Why a run failed, in words; an error has a message of its own."""


class RunFinished(RecordBase):
    """A run ended well."""

    kind: Literal["run_finished"] = "run_finished"
    peak_process_bytes: list[int]
    """Per worker: largest resident memory of the process during this run."""
    start_process_bytes: list[int]
    """Per worker: resident memory when this run began; shared workers carry earlier runs'
    libraries."""
    peak_device_bytes: list[int]
    """Per worker: largest memory that torch held on the device; 0 on a CPU."""
    time_to_accuracy: float | None
    """Seconds until `target_accuracy` was met; None if no target was set or it was never met."""
    stopped_early: bool = False
    """Ended before its last epoch, by `training.early_stopping`."""
    classes: ClassFigures | None = None
    """Of the last validation, by class; None where there are more than 1,000 classes."""
    seconds: float
    """Wall clock of the run, all included but for a profile, whose cost is apart."""
    first_step_seconds: float
    """From the start of the run in the worker to the end of its first optimiser step."""
    first_step_time: float | None = None
    """Wall clock at the end of that step, in seconds since 1970."""
    parts_seconds: dict[str, float] = Field(default_factory=dict)
    """Parts of `seconds` on rank 0, by part: joining the group, gate, data, training, validation,
    checkpoints, and the rest."""


class RunFailed(RecordBase):
    """A run ended without a result."""

    kind: Literal["run_failed"] = "run_failed"
    reason: FailReason
    message: str
    detail: str = ""
    """The traceback, where there is one."""
    step: int | None = None
    """Of a run that diverged: the first optimiser step, counted from 1, that shows it."""


class RunStopped(RecordBase):
    """An attempt ended because it was asked to, with a checkpoint; the run can be resumed.

    It is no end of the run: `Results.end_of` is None after it.
    """

    kind: Literal["run_stopped"] = "run_stopped"
    reason: StopReason
    epoch: int
    """The epoch in which it stopped, counted from 0."""
    step: int
    """Completed optimiser steps, over all epochs."""

    @property
    def words(self) -> str:
        if self.reason == "interval":
            return f"after epoch {self.epoch}, to be compared with the others"
        return f"in epoch {self.epoch + 1}, after step {self.step}; it can be resumed"


class RunPruned(RecordBase):
    """A sweep's scheduler ended the run early, as others do better. It is no failure: the run's
    results count.
    """

    kind: Literal["run_pruned"] = "run_pruned"
    by: str
    """The scheduler: asha, median, ..."""
    epoch: int
    """The last epoch that it finished, counted from 0."""
    value: float | None
    """The goal's value then, by which it was compared; None where there was none."""
    message: str = ""
    settled: bool = False
    """Whether the driver wrote it, maybe much later, for workers that had been lost by then."""

    @property
    def words(self) -> str:
        reached = "" if self.value is None else f" at {self.value:.4g}"
        why = f": {self.message}" if self.message else ""
        return f"by {self.by} after epoch {self.epoch + 1}{reached}{why}"


RunEnd = RunFinished | RunFailed | RunPruned
"""After which a run is not resumed."""


def is_left(end: RunEnd | None, retry_failed: bool = False) -> bool:
    """Whether an invocation that resumes trains the run: it has not ended, its journal is damaged,
    or it failed and failed ones are repeated."""
    if isinstance(end, RunFailed):
        return retry_failed or end.reason == "damaged"
    return end is None
