"""Who decides the trials of a sweep, and who ends or changes them: a block of options each."""

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
    """`tpe`: tree of Parzen estimators (Bergstra et al. 2011), which knows several goals too.
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
    """One of so many trials continues from a rung; the next rung is at so many times the epochs."""
    brackets: int = Field(default=1, ge=1)
    """Trials are distributed over so many brackets, each of which starts one rung later."""


class MedianScheduler(Options):
    """A trial ends where its best is worse than the median of the others' means so far
    (Golovin et al. 2017, section 3.2.2)."""

    name: Literal["median"] = "median"
    grace_epochs: int = Field(default=1, ge=1)
    """No trial ends before so many epochs."""
    min_trials: int = Field(default=3, ge=1)
    """So many others must have come as far."""


class PbtScheduler(Options):
    """Population-based training (Jaderberg et al. 2017, arXiv:1711.09846): trials are compared
    after each interval; the worst continue from the weights of the best, with other values."""

    name: Literal["pbt"] = "pbt"
    interval_epochs: int = Field(ge=1)
    """All trials wait for each other after so many epochs, and again after as many."""
    quantile: float = Field(default=0.25, gt=0, le=0.5)
    """So large a part of the trials, rounded up but at most half, takes the weights of as many of
    the best (default: Ray Tune's; the paper's truncation selection is of 20 %)."""
    resample: float = Field(default=0.25, ge=0, le=1)
    """How likely a value is drawn anew rather than changed from that of the other trial (default:
    Ray Tune's)."""
    factors: tuple[Factor, ...] = Field(default=(0.8, 1.2), min_length=1)
    """A number is multiplied by one of these, all alike, and kept within its range; of a `choice`
    a neighbour in the list is taken (default: the paper's)."""


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
