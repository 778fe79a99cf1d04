"""How a run ends, and how an attempt to run it ends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysuite.records.base import RecordBase
from raysuite.records.confusion import ClassFigures

StopReason = Literal["time_limit", "preempted", "interrupted", "down", "interval"]
"""time_limit: the allocation's time is nearly over. preempted: another job takes the allocation.
interrupted: a user stopped the run. down: the cluster is being shut down. interval: the trial waits
until its sweep's scheduler has compared the trials after the same epoch."""

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
"""gate: the gate check failed. error: an exception. lost: workers died too often. node_lost: a node
was lost too often, or did not come back. interrupted: a user ended the run without a checkpoint.
out_of_memory: a device's or host's memory was exceeded. deadline: a trial took longer than its
sweep allows. infeasible: the cluster cannot run the trial with its hyperparameter values, and the
trial was not started. diverged: losses or weights are not finite; the times of the run's steps
still count. damaged: the journal is damaged, and none of its figures counts; the journal's reader
sets this reason, and no journal contains it."""

STOPPED: dict[StopReason, str] = {
    "time_limit": "time limit",
    "preempted": "preempted",
    "interrupted": "interrupted",
    "down": "the cluster ended",
    "interval": "waits for the others",
}
"""Reason for stopping a run -> its text."""

FAILED: dict[FailReason, str] = {
    "gate": "by the gate",
    "error": "",
    "lost": "workers lost",
    "node_lost": "node lost",
    "interrupted": "interrupted",
    "out_of_memory": "out of memory",
    "deadline": "deadline",
    "infeasible": "infeasible here",
    "diverged": "diverged",
    "damaged": "journal damaged",
}
"""Reason for a run's failure -> its text; empty for `error`, as the exception's message is used."""


class RunFinished(RecordBase):
    """A run ended successfully."""

    kind: Literal["run_finished"] = "run_finished"
    peak_process_bytes: list[int]
    """Per worker: largest resident memory of the process during this run."""
    start_process_bytes: list[int]
    """Per worker: resident memory when this run began, including libraries that earlier runs
    loaded."""
    peak_device_bytes: list[int]
    """Per worker: largest memory that torch had allocated on the device; 0 on a CPU."""
    time_to_accuracy: float | None
    """`elapsed_seconds` of the first epoch whose validation met the target
    (`training.target_accuracy` or `training.target`); None if no target was set or it was never
    met."""
    stopped_early: bool = False
    """Whether `training.early_stopping` ended the run before its last epoch."""
    classes: ClassFigures | None = None
    """Figures of the last validation for each class; None for more than 1,000 classes."""
    seconds: float
    """Seconds of wall clock of the attempt that finished the run, without the profile, which has
    its own Record."""
    first_step_seconds: float
    """Seconds from the start of this attempt in the worker to the end of the attempt's first
    optimiser step."""
    first_step_time: float | None = None
    """Wall clock time at the end of the attempt's first optimiser step, in seconds since 1970."""
    parts_seconds: dict[str, float] = Field(default_factory=dict)
    """Phase on rank 0 -> its part of `seconds`: joining the group, gate, data, training,
    validation, checkpoints, and the rest."""


class RunFailed(RecordBase):
    """A run ended without a result."""

    kind: Literal["run_failed"] = "run_failed"
    reason: FailReason
    message: str
    detail: str = ""
    """The traceback, if there is one."""
    step: int | None = None
    """For a diverged run: the first optimiser step with divergence, counted from 1."""


class RunStopped(RecordBase):
    """An attempt ended on request, with a checkpoint; the run can be resumed.

    The run itself has not ended: `Results.end_of` is None.
    """

    kind: Literal["run_stopped"] = "run_stopped"
    reason: StopReason
    epoch: int
    """The epoch in which the attempt stopped, counted from 0; equal to the number of completed
    epochs."""
    step: int
    """Completed optimiser steps, over all epochs."""

    @property
    def words(self) -> str:
        if self.reason == "interval":
            return f"after epoch {self.epoch}, to be compared with the other trials"
        return f"in epoch {self.epoch + 1}, after step {self.step}; it can be resumed"


class RunPruned(RecordBase):
    """A sweep's scheduler ended the run early, because other trials are better. The run's results
    count."""

    kind: Literal["run_pruned"] = "run_pruned"
    by: str
    """The scheduler: asha, median, ..."""
    epoch: int
    """The last epoch that the run finished, counted from 0."""
    value: float | None
    """The value of the goal by which the run was compared; None if the run had no value."""
    message: str = ""
    settled: bool = False
    """Whether the driver wrote this Record, possibly much later, because the workers were lost."""

    @property
    def words(self) -> str:
        reached = "" if self.value is None else f" at {self.value:.4g}"
        why = f": {self.message}" if self.message else ""
        return f"by {self.by} after epoch {self.epoch + 1}{reached}{why}"


RunEnd = RunFinished | RunFailed | RunPruned
"""The Records after which a run is not resumed."""


def is_left(end: RunEnd | None, retry_failed: bool = False) -> bool:
    """Whether a command with `--resume` trains the run: the run has not ended, its journal is
    damaged, or it failed and `retry_failed` is set."""
    if isinstance(end, RunFailed):
        return retry_failed or end.reason == "damaged"
    return end is None
