"""The data of a sweep that its report needs: ranked trials, goals, formats, cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from raysuite.records import Results, RunJudged
from raysuite.records.names import block_name, key_name
from raysuite.records.sweep import (
    TrialFigures,
    at_work,
    lower_is_better,
    pareto,
    ranked,
    trials,
    wanted_goals,
)
from raysuite.report import text
from raysuite.spec.search import TIMES, Goal, goals_of
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts

STATES = ("finished", "pruned", "failed", "stopped", "missing")
"""States of trials, in the order of tables and legends."""


@dataclass(frozen=True)
class Told:
    """The format of a goal: its name, the title of its axis, and the format of values."""

    words: str
    axis: str
    write: Callable[[float], str]
    tickformat: str = ""


def told(goal: Goal, task: TaskFacts) -> Told:
    if goal in TIMES:
        words = goal.replace("_", " ")
        return Told(words, f"{words} [s]", text.seconds)
    if goal == "throughput":
        unit = f"{task.unit}/s"
        return Told("throughput", unit, lambda value: f"{text.number(value)} {unit}")
    words, share = f"validation {task.main.title.lower()}", task.main.unit == "share"
    write = text.percent if share else text.number
    return Told(words, f"best {words}", write, "~%" if share else "")


@dataclass(frozen=True)
class Study:
    """A sweep's results. All figures are computed from the Records of its results folder."""

    name: str
    search: dict[str, Any]
    """The spec's search section, as plain data."""
    base: dict[str, Any]
    """The spec whose keys the trials change, as plain data."""
    trials: tuple[TrialFigures, ...]
    spans: tuple[tuple[float, float], ...]
    """Intervals in which a trial used workers, in seconds since 1970."""

    @cached_property
    def goals(self) -> tuple[Goal, ...]:
        return wanted_goals(self.search)

    @property
    def goal(self) -> Goal:
        return self.goals[0]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.search["space"])

    @cached_property
    def task(self) -> TaskFacts:
        return next((trial.figures.task for trial in self.trials), CLASSIFICATION)

    def told(self, goal: Goal) -> Told:
        return told(goal, self.task)

    @property
    def quality(self) -> Goal:
        """The goal that is the primary metric: `accuracy` for classification, else `metric`."""
        return goals_of(self.task == CLASSIFICATION)[0]

    def lower_is_better(self, goal: Goal) -> bool:
        return lower_is_better(goal, self.task)

    def kind(self, key: str) -> str:
        """The distribution from which a searched key was drawn, such as `loguniform`."""
        given: dict[str, Any] = self.search["space"][key]
        return next(name for name, value in given.items() if name != "when" and value is not None)

    @property
    def best(self) -> TrialFigures | None:
        return next(iter(self.ranked), None)

    @cached_property
    def front(self) -> list[TrialFigures]:
        """The trials that no other trial dominates; empty if there is only one goal."""
        return pareto(self.trials, self.goals) if len(self.goals) > 1 else []

    @cached_property
    def ranked(self) -> list[TrialFigures]:
        """Finished trials and trials stopped early, sorted from best to worst by the first goal."""
        return ranked(self.trials, self.goal)

    @property
    def scheduler(self) -> str:
        """The scheduler's name, such as `asha`; `none` without a scheduler."""
        return block_name(self.search.get("scheduler") or "none").partition("(")[0]

    @property
    def searcher(self) -> str:
        return block_name(self.search.get("searcher") or "random")

    @property
    def worker_seconds(self) -> float:
        return math.fsum(trial.worker_seconds for trial in self.trials)

    @property
    def hosts(self) -> set[str]:
        """Fingerprints of the environments in which the trials ran."""
        begun = [trial.figures.started for trial in self.trials if trial.figures.started]
        return {str(started.environment.get("fingerprint")) for started in begun}

    def assignments(self, trial: TrialFigures) -> list[str]:
        """The trial's values of the searched keys: `training.lr = 0.12`."""
        return [
            f"{key} = {value_text(trial.values[key])}" for key in self.keys if key in trial.values
        ]

    def of(self, status: str) -> list[TrialFigures]:
        return [trial for trial in self.trials if trial.status == status]


def study(results: Results) -> Study | None:
    """The sweep in a results folder; None if the folder holds no sweep."""
    found = results.search()
    if found is None:
        return None
    made = tuple(trials(results))
    spans = tuple(span for trial in made for span in at_work(results.records(trial.run_id)))
    return Study(found["name"], found["search"], found["spec"], made, spans)


def value_of_source(study: Study, turn: RunJudged) -> float | None:
    """The primary metric, at this PBT step, of the trial whose weights were taken."""
    curves = {trial.run_id: trial.curve for trial in study.trials}
    curve = curves.get(turn.source or "", ())
    return next((value for epoch, _, value in curve if epoch == turn.epoch), None)


def trial_name(trial: TrialFigures) -> str:
    return f"trial {trial.number}"


def values_text(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """`lr=0.12, strategy=ddp`: values of the searched keys."""
    return ", ".join(f"{key_name(key)}={value_text(values[key])}" for key in keys if key in values)


def value_text(value: Any) -> str:
    """A value as short text: numbers with four digits, blocks by name and options."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return block_name(value)


def goal_text(goal: Goal, value: float | None, task: TaskFacts) -> str:
    return text.optional(value, told(goal, task).write)


def epochs_to_target(trial: TrialFigures) -> str:
    """Text after a time to target, such as `, 3 epochs`, because the time's resolution is one
    epoch; empty if the target was not met."""
    epochs = trial.figures.epochs_to_accuracy
    return "" if epochs is None else f", {text.count(epochs, 'epoch')}"


def worker_time(seconds: float) -> str:
    """`3.20 worker-hours`; below one hour, worker-seconds."""
    if seconds >= 3600:
        return f"{text.number(seconds / 3600)} worker-hours"
    return f"{text.number(seconds)} worker-seconds"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
