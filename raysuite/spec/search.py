"""The section `search` of a spec: what a sweep varies, its goal, its searcher and its scheduler."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from raysuite.spec.base import Options, expand_shorthand

Goal = Literal["accuracy", "time_to_accuracy", "throughput", "metric", "time_to_target"]

QUALITY: tuple[Goal, ...] = ("accuracy", "metric")
"""Goals for the best value of the task's primary metric; `accuracy` in classification."""
TIMES: tuple[Goal, ...] = ("time_to_accuracy", "time_to_target")
"""Goals for the time until the primary metric reaches the target."""


def goals_of(classifies: bool) -> tuple[Goal, Goal, Goal]:
    """The goals that a task can have: quality, time to the target, throughput."""
    place = 0 if classifies else 1
    return QUALITY[place], TIMES[place], "throughput"


Kind = Literal[
    "uniform",
    "loguniform",
    "quniform",
    "qloguniform",
    "normal",
    "qrandn",
    "randint",
    "lograndint",
    "qrandint",
    "qlograndint",
    "choice",
    "grid",
]
ALIASES: dict[str, Kind] = {"randn": "normal", "grid_search": "grid"}
"""Ray Tune's name of a distribution -> its name here."""
KINDS: tuple[Kind, ...] = get_args(Kind)
LISTED: tuple[Kind, ...] = ("choice", "grid")
"""Distributions that list their values."""


class Dimension(Options):
    """The distribution from which the values of a key are drawn, and the conditions (`when`) under
    which they are drawn."""

    uniform: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """[low, high]: numbers with a uniform distribution."""
    loguniform: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """[low, high]: numbers whose logarithm has a uniform distribution; low > 0."""
    quniform: list[float] | None = Field(default=None, min_length=3, max_length=3)
    """[low, high, step]: a `uniform` number, rounded to the nearest multiple of step. low and high
    must be multiples of step; low and high are each half as likely as a multiple between them."""
    qloguniform: list[float] | None = Field(default=None, min_length=3, max_length=3)
    """[low, high, step]: a `loguniform` number, rounded to the nearest multiple of step. low and
    high must be multiples of step; low > 0."""
    normal: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """[mean, standard deviation] of a normal distribution; also written `randn`."""
    qrandn: list[float] | None = Field(default=None, min_length=3, max_length=3)
    """[mean, standard deviation, step]: a `normal` number, rounded to the nearest multiple of
    step."""
    randint: list[int] | None = Field(default=None, min_length=2, max_length=2)
    """[low, high]: whole numbers from low up to, but not including, high, with equal
    probability."""
    lograndint: list[int] | None = Field(default=None, min_length=2, max_length=2)
    """[low, high]: whole numbers from low up to, but not including, high, uniform in the logarithm;
    low > 0."""
    qrandint: list[int] | None = Field(default=None, min_length=3, max_length=3)
    """[low, high, step]: one of the multiples of step from low up to high, with equal probability;
    with a step of 1, high is not included."""
    qlograndint: list[int] | None = Field(default=None, min_length=3, max_length=3)
    """[low, high, step]: one of the multiples of step, as for `qrandint`, but uniform in the
    logarithm; low > 0."""
    choice: list[Any] | None = Field(default=None, min_length=1)
    """One of these values, with equal probability; a value may be a whole block."""
    grid: list[Any] | None = Field(default=None, min_length=1)
    """Each drawn trial is repeated with every one of these values, which may be whole blocks; also
    written `grid_search`."""
    when: dict[str, Any] = Field(default_factory=dict)
    """Conditions: another key of the space, with `choice` or `grid` -> the value that it must have;
    for a block, its name. A value is drawn only if all conditions hold; otherwise the value in the
    spec is used."""

    @model_validator(mode="before")
    @classmethod
    def _by_its_own_name(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        # if both names are given, the alias stays and is reported as an unknown key
        return {
            name if (name := ALIASES.get(key)) is not None and name not in given else key: value
            for key, value in given.items()
        }

    @model_validator(mode="after")
    def _one_distribution(self) -> Dimension:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            said = f"got {' and '.join(given)}" if given else "got none"
            raise ValueError(f"give exactly one distribution; {said}; valid: {', '.join(KINDS)}")
        wrong = _wrong(given[0], self.arguments)
        if not wrong and "randint" in given[0] and not self.whole():
            wrong = "no multiple of the step lies between low and high"
        if wrong:
            raise ValueError(f"{given[0]} {self.arguments}: {wrong}")
        return self

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def arguments(self) -> list[Any]:
        found: list[Any] = getattr(self, self.kind)
        return found

    @property
    def is_normal(self) -> bool:
        """Whether the distribution has a mean and a standard deviation, but no bounds."""
        return self.kind in ("normal", "qrandn")

    def steps(self) -> Sequence[float]:
        """All values in order, if the distribution has a step or whole numbers; else empty."""
        if "randint" in self.kind:
            return self.whole()
        if self.kind not in ("quniform", "qloguniform"):
            return ()
        low, high, step = self.arguments
        return [
            self.on_step(step * number)
            for number in range(round(low / step), round(high / step) + 1)
        ]

    def whole(self) -> range:
        """The values of a distribution of whole numbers."""
        low, high, step = (*self.arguments, 1)[:3]
        return range(-(-low // step) * step, high + (step > 1), step)

    def on_step(self, value: float) -> float:
        """The nearest value that can be drawn; `value` itself for distributions without steps."""
        if "randint" in self.kind:
            return min(self.whole(), key=lambda each: abs(each - value))
        if not self.kind.startswith("q"):
            return value
        step = self.arguments[2]
        return float(f"{round(value / step) * step:.12g}")

    def edges(self) -> list[Any]:
        """Values that represent the distribution: all values of a list; the ends of a range, with a
        value between them if the range has no steps; the mean of a normal distribution."""
        if self.kind in LISTED:
            return self.arguments
        if self.is_normal:
            return [self.on_step(self.arguments[0])]  # a normal distribution has no ends
        if steps := self.steps():
            return [steps[0], steps[-1]]
        low, high = self.arguments
        return [low, low + 0.123456 * (high - low), high]  # the ends alone may be whole numbers


def _wrong(kind: Kind, arguments: list[Any]) -> str:
    """Why a distribution's arguments are invalid; empty if they are valid."""
    if kind in LISTED:
        written = [json.dumps(value, sort_keys=True, default=str) for value in arguments]
        twice = next((each for each in written if written.count(each) > 1), None)
        return f"{twice} is listed twice; keep one" if twice else ""
    if kind in ("normal", "qrandn"):
        names = ("standard deviation", "step")
        wrong = [name for name, each in zip(names, arguments[1:], strict=False) if each <= 0]
        return f"the {wrong[0]} must be above 0" if wrong else ""
    low, high, *step = arguments
    if low >= high:
        return "low must be below high"
    if "log" in kind and low <= 0:
        return "low must be above 0"
    if step and step[0] <= 0:
        return "the step must be above 0"
    if (
        step
        and "randint" not in kind
        and not all(math.isclose(bound / step[0], round(bound / step[0])) for bound in (low, high))
    ):
        return "low and high must be multiples of the step"
    return ""


# Searchers, which choose trials, and schedulers, which end or change them.

Factor = Annotated[float, Field(gt=0)]


class RandomSearch(Options):
    """Each trial is drawn independently."""

    name: Literal["random"] = "random"


class GridSearch(Options):
    """Every combination of the values of `grid` and `choice`, once."""

    name: Literal["grid"] = "grid"


class OptunaSearch(Options):
    """Optuna chooses each trial from the results of earlier trials."""

    name: Literal["optuna"] = "optuna"
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    """`tpe`: tree of Parzen estimators (Bergstra et al. 2011), also for several goals. `nsga2`: a
    genetic algorithm for several goals (Deb et al. 2002)."""
    startup_trials: int = Field(default=5, ge=1)
    """Number of trials that are drawn at random before the sampler uses results."""


class NoScheduler(Options):
    """Every trial trains for all of its epochs."""

    name: Literal["none"] = "none"


class AshaScheduler(Options):
    """ASHA (Li et al. 2020): at each rung the best trials continue, and the others end."""

    name: Literal["asha"] = "asha"
    grace_epochs: int = Field(default=1, ge=1)
    """Number of epochs before the first rung; no trial ends before it."""
    reduction_factor: float = Field(default=3, gt=1)
    """The best 1/`reduction_factor` of the trials at a rung continue. Each rung comes after
    `reduction_factor` times as many epochs as the previous rung."""
    brackets: int = Field(default=1, ge=1)
    """Number of brackets that trials are distributed over; a bracket's first rung is the second
    rung of the previous bracket."""


class MedianScheduler(Options):
    """After each epoch, a trial ends if its best value so far is worse than the median of the other
    trials' means; the mean of a trial is taken over its values up to the same epoch (Golovin et al.
    2017, section 3.2.2)."""

    name: Literal["median"] = "median"
    grace_epochs: int = Field(default=1, ge=1)
    """No trial ends before this many epochs; the means leave out the epochs before it."""
    min_trials: int = Field(default=3, ge=1)
    """Number of other trials that must reach an epoch before a trial can end there."""


class PbtScheduler(Options):
    """Population-based training (Jaderberg et al. 2017, arXiv:1711.09846): trials are compared
    after each interval; the worst trials continue from the weights of the best, with other
    values."""

    name: Literal["pbt"] = "pbt"
    interval_epochs: int = Field(ge=1)
    """Epochs between comparisons. All trials wait for each other at a comparison."""
    quantile: float = Field(default=0.25, gt=0, le=0.5)
    """Share of the trials that are replaced at a comparison: the worst trials copy the weights of
    equally many best trials. The number of replaced trials is rounded up, but is at most half of
    all (default: as in Ray Tune; the paper's truncation selection uses 20 %)."""
    resample: float = Field(default=0.25, ge=0, le=1)
    """Probability that a value is drawn again instead of derived from the better trial's value
    (default: as in Ray Tune)."""
    factors: tuple[Factor, ...] = Field(default=(0.8, 1.2), min_length=1)
    """A number is multiplied by one of these factors, with equal probability, and limited to its
    range (default: the factors of the paper). A value of a `choice` moves to a neighbour in the
    list."""


SearcherOptions = Annotated[
    RandomSearch | GridSearch | OptunaSearch,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]

SchedulerOptions = Annotated[
    NoScheduler | AshaScheduler | MedianScheduler | PbtScheduler,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]


class SearchOptions(Options):
    """A sweep: trials of this spec. Each trial is a whole run with other values."""

    trials: int | None = Field(default=None, ge=1)
    """Number of trials that are drawn; with `grid` in the space, each drawn trial runs with every
    value of the grid. Not valid for the searcher `grid`, which runs every combination."""
    space: dict[str, Dimension] = Field(min_length=1)
    """Dotted key of the spec -> the distribution of its values."""
    goal: Goal | None = None
    """The optimised quantity; default: `accuracy` in classification, else `metric`. `accuracy`:
    best validation accuracy. `metric`: for other tasks, the best value of the primary metric,
    maximised or minimised as the task declares. `time_to_accuracy`: seconds until
    `training.target_accuracy` is met. `time_to_target`: for other tasks, seconds until
    `training.target` is met. `throughput`: images, or another unit of the task, per second."""
    goals: list[Goal] = Field(default_factory=list)
    """Several goals together: the report shows the trials on their Pareto front."""
    searcher: SearcherOptions = RandomSearch()
    """The algorithm that chooses the trials' values."""
    scheduler: SchedulerOptions = NoScheduler()
    """The algorithm that stops trials early, or lets them copy the weights of better trials."""
    deadline_s: float | None = Field(default=3600.0, gt=0)
    """Time limit of a trial, in seconds of wall clock from its start; a trial that takes longer is
    stopped, and counts as failed. null: no limit."""
    side_by_side: int | None = Field(default=None, ge=1)
    """Largest number of trials that run at the same time; null: as many as the cluster has
    resources for."""
    seed: int = Field(default=0, ge=0)
    """Seed of the drawn values; the trials themselves train with the spec's `seed`."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> SearchOptions:
        if self.goal is not None and self.goals:
            raise ValueError("goal and goals were both given; give one of them")
        if len(set(self.goals)) < len(self.goals):
            raise ValueError(f"goals {', '.join(self.goals)}: one is listed twice; list each once")
        return self

    @property
    def wanted(self) -> tuple[Goal, ...]:
        """The goals; trials are compared by the first goal."""
        return tuple(self.goals) or (self.goal or "accuracy",)


def name_of(value: Any) -> Any:
    """The value in the form that conditions (`when`) compare: for a block, its name."""
    return value.get("name") if isinstance(value, dict) else value


def holds(when: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether all conditions hold. A condition on a missing key does not hold."""
    return all(
        key in values and name_of(values[key]) == name_of(wanted) for key, wanted in when.items()
    )
