"""Population-based training (PBT) as pure functions: decide which trials take another trial's
weights, and with which values each trial continues.

Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv:1711.09846: exploit by
truncation selection, explore by perturbation or resampling. All trials are compared after the same
epoch. Unlike in the paper, a trial takes weights only from a better trial.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from raysuite.plan.run_plan import RunPlan
from raysuite.plan.space import Values, active, draw, perturbed
from raysuite.plan.trials import trial_spec
from raysuite.spec import Document
from raysuite.spec.search import PbtScheduler, SearchOptions
from raysuite.spec.search_check import KEPT

_TRIES = 20
"""Largest number of draws of new values. If none of them is valid, the trial continues with the
values of the trial whose weights it takes, except for keys in KEPT."""


@dataclass(frozen=True)
class Standing:
    """A trial at a PBT step: when its population is compared."""

    number: int
    run_id: str
    value: float
    """The value by which trials are compared, higher is better; -infinity if the trial diverged."""
    values: Values


@dataclass(frozen=True)
class Turn:
    """How a trial continues after a PBT step."""

    trial: Standing
    place: int
    """Rank of the trial; the best trial has rank 1."""
    population: int
    source: Standing | None
    """The trial whose weights are taken; None if the trial keeps its own weights."""
    values: Values
    """The values with which the trial continues."""


def judge(
    search: SearchOptions,
    standings: Iterable[Standing],
    epochs: int,
    can_be: Callable[[Values], bool] = lambda values: True,
) -> list[Turn]:
    """Decide how each trial of a population continues after `epochs` epochs. The Turns are in order
    from the best to the worst trial.

    The result depends only on the search's seed and on the standings, not on their order. `can_be`
    returns whether values are valid together.
    """
    scheduler = search.scheduler
    assert isinstance(scheduler, PbtScheduler), "population-based training"
    ranked = sorted(standings, key=lambda each: (-each.value, each.number))
    count = len(ranked)
    cut = taken(scheduler, count)
    turns: list[Turn] = []
    for place, trial in enumerate(ranked, start=1):
        chance = random.Random(f"{search.seed}/pbt/{trial.number}/{epochs}")
        source = chance.choice(ranked[:cut]) if place > count - cut else None
        if source is None or source.value <= trial.value:
            turns.append(Turn(trial, place, count, None, trial.values))
            continue
        tried = (explored(search, trial.values, source.values, chance) for _ in range(_TRIES))
        kept = active(search.space, source.values | _kept(trial.values))
        values = next(filter(can_be, tried), kept)
        turns.append(Turn(trial, place, count, source, values))
    return turns


def taken(scheduler: PbtScheduler, population: int) -> int:
    """How many of the worst trials take weights. They take them from equally many of the best."""
    share = round(population * scheduler.quantile, 9)  # 25 * 0.28 is 7.000000000000001
    return min(math.ceil(share), population // 2)


def explored(
    search: SearchOptions, own: Mapping[str, object], source: Values, chance: random.Random
) -> Values:
    """New values, derived from `source`, the values of the trial whose weights are taken; keys in
    KEPT have the values in `own`."""
    scheduler = search.scheduler
    assert isinstance(scheduler, PbtScheduler), "population-based training"
    found: Values = {}
    for key, dimension in search.space.items():
        anew = chance.random() < scheduler.resample
        if key in KEPT:
            continue
        if anew or key not in source:
            found[key] = draw(dimension, chance)
        else:
            found[key] = perturbed(dimension, source[key], scheduler.factors, chance)
    return active(search.space, found | _kept(own))


def _kept(values: Mapping[str, object]) -> Values:
    return {key: value for key, value in values.items() if key in KEPT}


def with_values(document: Document, plan: RunPlan, values: Values) -> RunPlan:
    """The plan with new values for the rest of the run. Raises SpecError for invalid values."""
    spec = trial_spec(document, values)
    rate = spec.optimizer.peak_lr(plan.global_batch)
    return plan.model_copy(update={"spec": spec, "label": dict(values), "peak_lr": rate})
