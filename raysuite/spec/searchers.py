"""What chooses the trials of a sweep, and what stops or changes them: a block of options each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from raysuite.spec.base import Options, expand_shorthand

Factor = Annotated[float, Field(gt=0)]


class RandomSearch(Options):
    """Each trial is drawn by itself."""

    name: Literal["random"] = "random"


class GridSearch(Options):
    """Every combination of the values of `grid` and `choice`, once."""

    name: Literal["grid"] = "grid"


class OptunaSearch(Options):
    """Optuna: the next trial is decided by the results of the earlier ones."""

    name: Literal["optuna"] = "optuna"
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    """`tpe`: tree of Parzen estimators (Bergstra et al. 2011), which also supports several goals.
    `nsga2`: a genetic algorithm for several goals (Deb et al. 2002)."""
    startup_trials: int = Field(default=5, ge=1)
    """Trials that are drawn at random before the sampler learns from them."""


class NoScheduler(Options):
    """Every trial makes all of its epochs."""

    name: Literal["none"] = "none"


class AshaScheduler(Options):
    """ASHA (Li et al. 2020): at each rung the best of the trials continue, the others end."""

    name: Literal["asha"] = "asha"
    grace_epochs: int = Field(default=1, ge=1)
    """The first rung: no trial ends before so many epochs."""
    reduction_factor: float = Field(default=3, gt=1)
    """At each rung, one in this many trials continues; each rung has this many times the epochs of
    the one before."""
    brackets: int = Field(default=1, ge=1)
    """Trials are distributed over so many brackets, each of which starts one rung later."""


class MedianScheduler(Options):
    """A trial is stopped if its best result so far is worse than the median of the other trials'
    running means (Golovin et al. 2017, section 3.2.2)."""

    name: Literal["median"] = "median"
    grace_epochs: int = Field(default=1, ge=1)
    """No trial ends before so many epochs."""
    min_trials: int = Field(default=3, ge=1)
    """No trial ends before so many others have finished as many epochs."""


class PbtScheduler(Options):
    """Population-based training (Jaderberg et al. 2017, arXiv:1711.09846): trials are compared
    after each interval; the worst continue from the weights of the best, with other values."""

    name: Literal["pbt"] = "pbt"
    interval_epochs: int = Field(ge=1)
    """All trials are compared each time that they have finished so many further epochs; they wait
    for each other there."""
    quantile: float = Field(default=0.25, gt=0, le=0.5)
    """This part of the trials, the worst ones, takes the weights of as many of the best; it is
    rounded up, and at most half (default: Ray Tune's; truncation selection in the paper: 20 %)."""
    resample: float = Field(default=0.25, ge=0, le=1)
    """Probability that a value is drawn anew instead of perturbed from that of the better trial
    (default: Ray Tune's)."""
    factors: tuple[Factor, ...] = Field(default=(0.8, 1.2), min_length=1)
    """A number is multiplied by one of these, chosen with equal probability, and kept within its
    range; a `choice` moves to a neighbour in its list (default: the paper's)."""


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
