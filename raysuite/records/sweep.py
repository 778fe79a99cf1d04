"""Read the values, results and costs of a sweep's trials from its results folder; rank the trials.

Goals: `accuracy` is the best validation accuracy in [0, 1]; for tasks other than classification,
`metric` is the best value of the primary metric. `time_to_accuracy` and `time_to_target` are in
seconds, lower is better. `throughput` is in images, or the task's unit, per second; higher is
better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raysuite.records.batch_trials import BatchFound
from raysuite.records.derive import RunFigures, Status, run_figures
from raysuite.records.ends import RunPruned
from raysuite.records.journal import Results
from raysuite.records.judged import RunJudged, turns_of
from raysuite.records.names import Plan
from raysuite.records.schema import Record, RunStarted
from raysuite.spec.search import QUALITY, TIMES, Goal, goals_of
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts

_ENDED_WELL = ("finished", "pruned")


@dataclass(frozen=True)
class TrialFigures:
    number: int
    """Counted from 0, in the order in which trials were chosen."""
    run_id: str
    values: dict[str, Any]
    """Dotted key -> value at the trial's start. A key whose condition does not hold is absent."""
    status: Status
    reason: str
    """Why the trial has no complete result; empty for a finished trial."""
    goals: dict[Goal, float | None]
    """The trial's result for each goal; None if there is no result, or if it may not be
    reported."""
    epochs: int
    """Completed epochs."""
    worker_seconds: float
    """Number of workers * wall-clock seconds of the batch-size search and of all attempts. An
    attempt lasts from its start to the workers' last Record."""
    curve: tuple[tuple[int, float, float], ...]
    """For each epoch: its number from 0, seconds since the start, the task's primary metric."""
    figures: RunFigures
    turns: tuple[RunJudged, ...] = ()
    """PBT steps of the trial."""

    @property
    def values_now(self) -> dict[str, Any]:
        """The trial's values of the searched keys after all of its PBT steps."""
        return dict(self.turns[-1].values) if self.turns else self.values

    @property
    def taken(self) -> list[RunJudged]:
        """PBT steps in which the trial took the weights of another trial."""
        return [turn for turn in self.turns if turn.source is not None]

    @property
    def counts(self) -> bool:
        """Whether the trial may be the best: it finished, or a scheduler ended it early."""
        return self.status in _ENDED_WELL

    def cost(self, goal: Goal) -> float:
        """The result for the goal, negated if higher is better; infinite if there is no result."""
        value = self.goals.get(goal)
        if value is None:
            return math.inf
        return value if lower_is_better(goal, self.figures.task) else -value


def trials(results: Results) -> list[TrialFigures]:
    """Every chosen trial, in the order in which trials were chosen."""
    return [trial_figures(plan, results.records(plan["run_id"])) for plan in results.plans()]


def trial_figures(plan: Plan, records: Sequence[Record]) -> TrialFigures:
    """One trial, from its plan and all of its Records in the order of writing."""
    run = run_figures(plan, records)
    quality, timed, rate = goals_of(run.task == CLASSIFICATION)
    return TrialFigures(
        number=int(plan["index"]),
        run_id=run.run_id,
        values=dict(plan["label"]),
        status=run.status,
        reason=run.reason,
        goals={quality: run.best_primary, timed: run.time_to_accuracy, rate: run.throughput},
        epochs=len(run.epochs),
        worker_seconds=run.workers * wall_seconds(records),
        curve=tuple(
            (each.epoch, each.elapsed_seconds, each.validation[run.task.primary])
            for each in run.epochs
            if run.task.primary in each.validation
        ),
        figures=run,
        turns=turns_of(records),
    )


def wanted_goals(search: dict[str, Any]) -> tuple[Goal, ...]:
    """The goals of a `search` section, given as plain data; trials are ranked by the first goal."""
    return tuple(search.get("goals") or [search.get("goal") or "accuracy"])


def lower_is_better(goal: Goal, task: TaskFacts) -> bool:
    """Whether a goal is minimised."""
    return goal in TIMES or (goal in QUALITY and not task.main.higher_is_better)


def ranked(trials: Iterable[TrialFigures], goal: Goal) -> list[TrialFigures]:
    """The finished and pruned trials that have a result for the goal, best first. Trials with equal
    results are sorted by number."""
    reached = [trial for trial in trials if trial.counts and trial.goals.get(goal) is not None]
    return sorted(reached, key=lambda trial: (trial.cost(goal), trial.number))


def best(trials: Iterable[TrialFigures], goal: Goal) -> TrialFigures | None:
    """The first trial of `ranked`: the best result and, among equal results, the lowest number."""
    return next(iter(ranked(trials, goal)), None)


def pareto(trials: Iterable[TrialFigures], goals: Sequence[Goal]) -> list[TrialFigures]:
    """The trials that no other trial dominates, sorted by the first goal, best first. A trial
    dominates another if it is better in at least one goal and not worse in any other. Failed
    trials, and trials without a result for one of the goals, are left out."""
    whole = [
        trial
        for trial in trials
        if trial.counts and all(trial.goals.get(goal) is not None for goal in goals)
    ]
    costs = {each.number: tuple(map(each.cost, goals)) for each in whole}
    front = [
        trial
        for trial in whole
        if not any(_dominates(costs[other.number], costs[trial.number]) for other in whole)
    ]
    return sorted(front, key=lambda trial: (costs[trial.number], trial.number))


def _dominates(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    return left != right and all(a <= b for a, b in zip(left, right, strict=True))


def wall_seconds(records: Sequence[Record]) -> float:
    """Wall-clock seconds of the batch-size search and of all attempts of a run."""
    return math.fsum(end - begin for begin, end in at_work(records))


def at_work(records: Sequence[Record]) -> Iterator[tuple[float, float]]:
    """Intervals (start, end) in which a run used workers, in seconds since 1970.

    The intervals cover the batch-size search, and each attempt from its start to the workers' last
    Record. A run that waits for other trials at a PBT step uses no workers.
    """
    start: float | None = None
    last = 0.0
    for record in records:
        if isinstance(record, BatchFound):
            yield record.time - record.seconds, record.time
            continue
        if isinstance(record, RunStarted):
            if start is not None:
                yield start, max(start, last)
            start = record.time
        by_driver = isinstance(record, RunPruned) and record.settled
        if not isinstance(record, RunJudged) and not by_driver:
            last = record.time
    if start is not None:
        yield start, max(start, last)
