"""The decision on a trial of a population at an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from raysuite.records.base import RecordBase
from raysuite.records.ends import RunStopped


class RunJudged(RecordBase):
    """At an interval a sweep's scheduler compared the run with the others of its population.

    It continues with its own weights, or with a copy of another's and with other values. The epochs
    before it are those of the weights that it had then.
    """

    kind: Literal["run_judged"] = "run_judged"
    by: str
    """The scheduler: pbt."""
    epoch: int
    """The last epoch that it had finished, counted from 0."""
    value: float | None
    """What it was compared by: the primary metric after that epoch; None where it diverged."""
    place: int
    """Its place in the population, the best is 1."""
    population: int
    """How many runs were compared."""
    source: str | None = None
    """Id of the run whose checkpoint after the same epoch it took; None: it kept its own."""
    source_trial: int | None = None
    """That run's number as a trial."""
    values: dict[str, Any]
    """Dotted key -> value from here on, of all keys that are searched."""

    @property
    def words(self) -> str:
        took = f"takes the weights of trial {self.source_trial}"
        what = "continues" if self.source is None else took
        return f"{self.place} of {self.population} after epoch {self.epoch + 1}: {what}"


def held_after(records: Sequence[object]) -> int | None:
    """Completed epochs of a run that waits at an interval to be compared; None: it does
    not."""
    last = records[-1] if records else None
    return last.epoch if isinstance(last, RunStopped) and last.reason == "interval" else None


def turns_of(records: Sequence[object]) -> tuple[RunJudged, ...]:
    return tuple(record for record in records if isinstance(record, RunJudged))
