"""Where a sweep stands, from its trials' Records: what the live table and the log show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raysuite.cli.run_state import RunState, Status
from raysuite.cli.tail import Tail
from raysuite.plan import RunPlan
from raysuite.records import Record
from raysuite.records.sweep import Goal, TrialFigures, best, pareto, trial_figures

ENDED: tuple[Status, ...] = ("finished", "pruned", "failed")


class TrialState:
    """One trial, as far as its Records tell."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.run = RunState(plan)
        self.tail = Tail()
        self._data = plan.model_dump(mode="json")
        self._records: list[Record] = []
        self._figures: TrialFigures | None = None

    def take(self, record: Record) -> None:
        """Move on by one Record."""
        self.run.take(record)
        self._records.append(record)
        self._figures = None

    @property
    def figures(self) -> TrialFigures:
        """What it reached so far."""
        if self._figures is None:
            self._figures = trial_figures(self._data, self._records)
        return self._figures

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.run.status in ENDED


class SweepState:
    """All trials that were decided so far, of `total`."""

    def __init__(self, goals: Sequence[Goal], total: int) -> None:
        self.goals = tuple(goals)
        self.total = total
        self.trials: list[TrialState] = []
        self._began: tuple[float, int] | None = None

    def add(self, plan: RunPlan) -> None:
        """One trial more, unless it is known; one whose batch was found takes its own place."""
        known = {trial.plan.index: place for place, trial in enumerate(self.trials)}
        if plan.index not in known:
            self.trials.append(TrialState(plan))
        elif self.trials[known[plan.index]].plan.run_id != plan.run_id:
            self.trials[known[plan.index]] = TrialState(plan)

    def begin(self, now: float) -> None:
        """From here on time is counted, in seconds of any one clock."""
        self._began = (now, self.ended)

    @property
    def ended(self) -> int:
        """How many trials have ended."""
        return sum(trial.has_ended for trial in self.trials)

    def counts(self) -> Counter[Status]:
        """How many trials are in each state."""
        return Counter(trial.run.status for trial in self.trials)

    def best(self) -> TrialFigures | None:
        """The best by the first goal of those that have ended."""
        return best(self._well(), self.goals[0])

    def front(self) -> list[TrialFigures]:
        """Of several goals, the trials that no other beats so far; else none."""
        return pareto(self._well(), self.goals) if len(self.goals) > 1 else []

    def _well(self) -> list[TrialFigures]:
        return [trial.figures for trial in self.trials if trial.has_ended]

    def seconds_left(self, now: float) -> float | None:
        """An estimate: as if the trials to come took as long as those that ended since `begin`;
        None before one has."""
        if self._began is None:
            return None
        since, before = self._began
        ended = self.ended - before
        if not ended:
            return None
        return max(0.0, (now - since) / ended * (self.total - self.ended))
