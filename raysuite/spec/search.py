"""`search` of a spec: what a sweep varies, towards which goal, decided and ended early by whom."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from raysuite.records.sweep import Goal
from raysuite.spec.base import Options
from raysuite.spec.searchers import NoScheduler, RandomSearch, SchedulerOptions, SearcherOptions

Kind = Literal["uniform", "loguniform", "quniform", "normal", "randint", "choice", "grid"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LISTED: tuple[Kind, ...] = ("choice", "grid")
"""Distributions that list their values."""


class Dimension(Options):
    """What a key is drawn from: one distribution, and when it is drawn at all."""

    uniform: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """[low, high]: every number alike."""
    loguniform: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """[low, high]: every order of magnitude alike; low > 0."""
    quniform: list[float] | None = Field(default=None, min_length=3, max_length=3)
    """[low, high, step]: low, low + step, low + 2 steps, ..., up to high, alike."""
    normal: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """[mean, standard deviation]."""
    randint: list[int] | None = Field(default=None, min_length=2, max_length=2)
    """[low, high]: every whole number from low on and below high, alike."""
    choice: list[Any] | None = Field(default=None, min_length=1)
    """The values, or whole blocks, alike."""
    grid: list[Any] | None = Field(default=None, min_length=1)
    """Every trial that is drawn is made with each of these values, or whole blocks."""
    when: dict[str, Any] = Field(default_factory=dict)
    """Key of another `choice` or `grid` -> the value that it must have, a block's by its name.
    Otherwise the key is left as the spec has it."""

    @model_validator(mode="after")
    def _one_distribution(self) -> Dimension:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            said = f"given were {' and '.join(given)}" if given else "given was none"
            raise ValueError(f"give exactly one distribution; {said}; valid are {', '.join(KINDS)}")
        wrong = _wrong(given[0], self.arguments)
        if wrong:
            raise ValueError(f"{given[0]} {self.arguments}: {wrong}")
        return self

    @property
    def kind(self) -> Kind:
        """The distribution's name."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def arguments(self) -> list[Any]:
        """What stands behind the distribution's name."""
        found: list[Any] = getattr(self, self.kind)
        return found

    def steps(self) -> list[float]:
        """The values of a quniform."""
        low, high, step = self.arguments
        count = int((high - low) / step * (1 + 1e-12) + 1e-9)
        return [float(f"{low + number * step:.12g}") for number in range(count + 1)]


def _wrong(kind: Kind, arguments: list[Any]) -> str:
    """Why a distribution cannot be; empty where it can."""
    if kind in LISTED:
        written = [json.dumps(value, sort_keys=True, default=str) for value in arguments]
        twice = next((each for each in written if written.count(each) > 1), None)
        return f"{twice} stands there twice; keep one" if twice else ""
    if kind == "normal":
        return "" if arguments[1] > 0 else "the standard deviation must be above 0"
    low, high = arguments[:2]
    if low >= high:
        return "low must be below high"
    if kind == "loguniform" and low <= 0:
        return "low must be above 0"
    if kind == "quniform" and not 0 < arguments[2] <= (high - low) * (1 + 1e-9):
        return "the step must be above 0, and at most high - low"
    return ""


class SearchOptions(Options):
    """A sweep: trials of this spec, each a whole run with values of its own."""

    trials: int | None = Field(default=None, ge=1)
    """How many are drawn; with `grid` in the space, each is made with every value of it. The
    searcher `grid` makes every combination and takes no number."""
    space: dict[str, Dimension] = Field(min_length=1)
    """Dotted key of the spec -> what it is drawn from."""
    goal: Goal | None = None
    """What is looked for; accuracy where nothing else is said. `accuracy`: the best on the
    validation set. `time_to_accuracy`: seconds to `training.target_accuracy`. `throughput`: images
    per second."""
    goals: list[Goal] = Field(default_factory=list)
    """Several at once: the trials that no other beats in all of them (Pareto front)."""
    searcher: SearcherOptions = RandomSearch()
    """Who decides the trials."""
    scheduler: SchedulerOptions = NoScheduler()
    """Who ends trials early, or has them take the weights of better ones."""
    deadline_s: float | None = Field(default=3600.0, gt=0)
    """Seconds of wall clock from a trial's start on; one that takes longer is ended, and counts as
    failed. null: none."""
    side_by_side: int | None = Field(default=None, ge=1)
    """At most so many trials at once; null: as many as the cluster holds."""
    seed: int = Field(default=0, ge=0)
    """Of what is drawn; the trials' own seed is the spec's."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> SearchOptions:
        if self.goal is not None and self.goals:
            raise ValueError("goal and goals were both given; give one of them")
        if len(set(self.goals)) < len(self.goals):
            raise ValueError(f"goals {', '.join(self.goals)}: each counts once")
        return self

    @property
    def wanted(self) -> tuple[Goal, ...]:
        """The goals; the first is the one that trials are compared by."""
        return tuple(self.goals) or (self.goal or "accuracy",)


def name_of(value: Any) -> Any:
    """A value of a choice as a condition names it: a block by its name."""
    return value.get("name") if isinstance(value, dict) else value


def holds(when: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether all conditions hold; one on a key that is not there does not."""
    return all(
        key in values and name_of(values[key]) == name_of(wanted) for key, wanted in when.items()
    )
