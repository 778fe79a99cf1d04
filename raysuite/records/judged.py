"""The Record of what a sweep's scheduler decided about a trial at a PBT step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from raysuite.records.base import RecordBase
from raysuite.records.ends import RunStopped


class RunJudged(RecordBase):
    """At a PBT step, a sweep's scheduler compared the run with the other runs of its population.

    The run keeps its weights, or takes a copy of another run's weights and new hyperparameters. If
    it takes a copy, its Records of earlier epochs belong to the replaced weights.
    """

    kind: Literal["run_judged"] = "run_judged"
    by: str
    """The scheduler: pbt."""
    epoch: int
    """The last epoch that the run had finished, counted from 0."""
    value: float | None
    """The primary metric after `epoch`, by which runs are compared; None if the run diverged."""
    place: int
    """Place of the run in the population; 1 is the best."""
    population: int
    """Number of runs that were compared."""
    source: str | None = None
    """Id of the run whose weights after `epoch` were copied; None if the run kept its weights."""
    source_trial: int | None = None
    """Trial number of the run `source`."""
    values: dict[str, Any]
    """Dotted key -> value after this step, for all searched keys."""

    @property
    def words(self) -> str:
        took = f"takes the weights of trial {self.source_trial}"
        what = "continues" if self.source is None else took
        return f"place {self.place} of {self.population} after epoch {self.epoch + 1}: {what}"


def held_after(records: Sequence[object]) -> int | None:
    """Number of completed epochs of a run that waits for a PBT step; None for any other run."""
    last = records[-1] if records else None
    return last.epoch if isinstance(last, RunStopped) and last.reason == "interval" else None


def turns_of(records: Sequence[object]) -> tuple[RunJudged, ...]:
    return tuple(record for record in records if isinstance(record, RunJudged))
