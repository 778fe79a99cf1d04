"""Where an experiment stands, from its Records: what the progress display shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from raysuite.plan import RunPlan
from raysuite.records import (
    EpochFinished,
    GateVerdict,
    Record,
    RunFailed,
    RunFigures,
    RunFinished,
    RunPruned,
    RunStarted,
    RunStopped,
    run_figures,
)

Status = Literal["waiting", "running", "paused", "stopped", "finished", "failed", "pruned"]
"""paused: waits at an interval of its sweep for the others. stopped: to be taken up again. pruned:
ended early by a sweep's scheduler."""


class RunState:
    """One run, as far as its Records tell."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.status: Status = "waiting"
        self.epochs_done = 0
        self.verdict: GateVerdict | None = None
        self.last_epoch: EpochFinished | None = None
        self._records: list[Record] = []

    def take(self, record: Record) -> None:
        """Move on by one Record."""
        self._records.append(record)
        match record:
            case RunStarted():
                self.status, self.epochs_done = "running", record.first_epoch
            case GateVerdict():
                self.verdict = record
            case EpochFinished():
                self.epochs_done, self.last_epoch = record.epoch + 1, record
            case RunFinished():
                self.status = "finished"
            case RunFailed():
                self.status = "failed"
            case RunPruned():
                self.status = "pruned"
            case RunStopped():
                self.status = "paused" if record.reason == "interval" else "stopped"

    def figures(self) -> RunFigures:
        """The run's figures, as the report will tell them."""
        return run_figures(self.plan.model_dump(mode="json"), self._records)

    @property
    def images_done(self) -> int:
        """Training images behind it."""
        return self.epochs_done * self.plan.dataset.train_samples

    @property
    def images_to_go(self) -> int:
        """Training images before it; none once it has ended."""
        if self.status in ("finished", "failed", "pruned"):
            return 0
        epochs = self.plan.spec.training.epochs - self.epochs_done
        return max(0, epochs) * self.plan.dataset.train_samples


class TimeLeft:
    """Estimate from the work behind us: seconds per image so far, times the images to go.

    Starts of workers, gates and validations are in the seconds, and so in the estimate. Runs on
    more workers are faster than it says, runs of larger networks slower.
    """

    def __init__(self, runs: Sequence[RunState], now: float) -> None:
        self._runs = runs
        self._start = now
        self._images_at_start = self._images()
        self._estimate: tuple[float, float] | None = None

    def _images(self) -> int:
        return sum(run.images_done for run in self._runs)

    def update(self, now: float) -> None:
        """Call when an epoch or a run has ended, with the present second of any one clock."""
        done = self._images() - self._images_at_start
        if done > 0:
            rate = (now - self._start) / done
            self._estimate = (now, rate * sum(run.images_to_go for run in self._runs))

    def seconds(self, now: float) -> float | None:
        """Seconds until the last run has ended; None before an epoch has ended."""
        if self._estimate is None:
            return None
        when, left = self._estimate
        return max(0.0, left - (now - when))
