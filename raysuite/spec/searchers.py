"""Who decides the trials of a sweep, and who ends them early: a block of options each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from raysuite.spec.base import Options, expand_shorthand


class RandomSearch(Options):
    """Each trial is drawn by itself."""

    name: Literal["random"] = "random"


class GridSearch(Options):
    """Every combination of the values of `grid` and `choice`, once."""

    name: Literal["grid"] = "grid"


class OptunaSearch(Options):
    """Optuna: the next trial is decided by what the earlier ones reached."""

    name: Literal["optuna"] = "optuna"
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    """`tpe`: tree of Parzen estimators (Bergstra et al. 2011), which knows several goals too.
    `nsga2`: a genetic algorithm for several goals (Deb et al. 2002)."""
    startup_trials: int = Field(default=5, ge=1)
    """Trials that are drawn at random before the sampler learns from them."""


class BohbSearch(Options):
    """BOHB (Falkner et al. 2018), where `hpbandster` and `ConfigSpace` are installed."""

    name: Literal["bohb"] = "bohb"


class NoScheduler(Options):
    """Every trial makes all of its epochs."""

    name: Literal["none"] = "none"


class AshaScheduler(Options):
    """ASHA (Li et al. 2020): at each rung the best of the trials go on, the others end."""

    name: Literal["asha"] = "asha"
    grace_epochs: int = Field(default=1, ge=1)
    """The first rung: no trial ends before so many epochs."""
    reduction_factor: float = Field(default=3, gt=1)
    """One of so many trials goes on from a rung; the next rung lies so many times farther."""
    brackets: int = Field(default=1, ge=1)
    """Trials are dealt to so many brackets, whose first rungs lie one farther each."""


class MedianScheduler(Options):
    """A trial ends where its best is worse than the median of the others' means so far
    (Golovin et al. 2017, section 3.2.2)."""

    name: Literal["median"] = "median"
    grace_epochs: int = Field(default=1, ge=1)
    """No trial ends before so many epochs."""
    min_trials: int = Field(default=3, ge=1)
    """So many others must have come as far."""


SearcherOptions = Annotated[
    RandomSearch | GridSearch | OptunaSearch | BohbSearch,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]

SchedulerOptions = Annotated[
    NoScheduler | AshaScheduler | MedianScheduler,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]
