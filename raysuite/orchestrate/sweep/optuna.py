"""Suggest the values of trials with Optuna, through its ask-and-tell interface.

For each suggestion, the study is rebuilt from the trials' results. The random state of a suggestion
depends only on the sweep's seed and the trial's number, so a resumed sweep makes the same
suggestions as an uninterrupted sweep.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from raysuite.plan.space import Values, active
from raysuite.records.sweep import TrialFigures, lower_is_better
from raysuite.spec.search import QUALITY, TIMES, Dimension, Goal, OptunaSearch, SearchOptions, holds
from raysuite.spec.tasks import CLASSIFICATION

# A space's dimensions in Optuna's form: plain numbers between bounds.

_TAIL = 1e-6
"""Probability of each of the two tails that are cut off a normal distribution."""
_DIGITS = 6
"""Significant digits to which a drawn number is rounded, so that files contain its exact value."""


def distribution_of(dimension: Dimension) -> BaseDistribution:
    """The distribution from which Optuna draws a number, which `spec_value` converts to the spec's
    value. In a range, this number is the value before rounding; for integers on a logarithmic
    scale, it is the value in units of the step, before rounding; for a normal distribution, it is a
    cumulative probability; for other integers and for choices, it is the index of the value."""
    arguments = dimension.arguments
    match dimension.kind:
        case "uniform" | "quniform":
            return FloatDistribution(arguments[0], arguments[1])
        case "loguniform" | "qloguniform":
            return FloatDistribution(arguments[0], arguments[1], log=True)
        case "normal" | "qrandn":
            return FloatDistribution(_TAIL, 1 - _TAIL)
        case "lograndint" | "qlograndint":  # each step represents the range up to the next step
            whole = dimension.whole()
            return FloatDistribution(whole[0] / whole.step, whole[-1] / whole.step + 1, log=True)
        case "randint" | "qrandint":
            return IntDistribution(0, len(dimension.whole()) - 1)
        case "choice" | "grid":
            return CategoricalDistribution(range(len(arguments)))


def spec_value(dimension: Dimension, found: Any) -> Any:
    """The spec's value for a number that Optuna chose."""
    arguments = dimension.arguments
    match dimension.kind:
        case "uniform" | "loguniform":
            return min(max(_short(found), arguments[0]), arguments[1])
        case "normal" | "qrandn":
            return dimension.on_step(_short(NormalDist(*arguments[:2]).inv_cdf(found)))
        case "quniform" | "qloguniform":
            return dimension.on_step(found)
        case "lograndint" | "qlograndint":
            whole = dimension.whole()
            return min(math.floor(found) * whole.step, whole[-1])
        case "randint" | "qrandint":
            return dimension.whole()[int(found)]
        case "choice" | "grid":
            return arguments[int(found)]


def internal_value(dimension: Dimension, value: Any) -> Any:
    """A number for which `spec_value` returns the spec's value."""
    match dimension.kind:
        case "normal" | "qrandn":
            return min(max(NormalDist(*dimension.arguments[:2]).cdf(value), _TAIL), 1 - _TAIL)
        case "lograndint" | "qlograndint":
            steps = value / dimension.whole().step
            return math.sqrt(steps * (steps + 1))  # the middle, on a logarithmic scale
        case "randint" | "qrandint":
            return dimension.whole().index(value)
        case "choice" | "grid":
            return dimension.arguments.index(value)
        case _:
            return value


def ordered(space: Mapping[str, Dimension]) -> Iterator[tuple[str, Dimension]]:
    """All keys with their dimensions, each after the keys on which its conditions depend."""
    known: set[str] = set()
    while len(known) < len(space):
        for key, dimension in space.items():
            if key not in known and known.issuperset(dimension.when):
                known.add(key)
                yield key, dimension


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


# The objective of a trial, as given to Optuna.


def longest_s(trials: Iterable[TrialFigures]) -> float:
    """The longest training time of the trials that have a valid result, in seconds: an upper bound
    of all times to the target."""
    curves = [trial.curve for trial in trials if trial.counts and trial.curve]
    return max((curve[-1][1] for curve in curves), default=0.0)


def objective(trial: TrialFigures, goal: Goal, longest: float) -> float | None:
    """A trial's objective for a goal; None if it cannot be computed.

    `longest` is the result of `longest_s` for all trials of the sweep.

    A trial that missed its target has no time to the target. The objective of this trial is higher
    (worse) than the objectives of all trials that met the target, and grows as the trial's primary
    metric gets worse. So the sampler searches near trials that almost met the target, even before
    any trial has met it.
    """
    value = trial.goals.get(goal)
    reached = next((trial.goals[each] for each in QUALITY if each in trial.goals), None)
    if goal not in TIMES or value is not None or reached is None or not trial.counts:
        return value
    main = trial.figures.task.main
    if main.unit == "share":
        return longest * (2.0 - (reached if main.higher_is_better else 1.0 - reached))
    return longest * (1.5 - main.sign * reached / (1 + abs(reached)) / 2)  # 1 to 2 times `longest`


_GENERATION = "NSGAIISampler:generation"


class OptunaAlgorithm:
    """Suggests the next values with one of Optuna's samplers."""

    def __init__(self, search: SearchOptions) -> None:
        assert isinstance(search.searcher, OptunaSearch)
        self._search = search
        self._options = search.searcher
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def next(self, trials: Sequence[TrialFigures], left_out: Sequence[Values]) -> Values | None:
        """The sampler's suggestion after these trials; None if the sweep has all its trials."""
        if len(trials) >= (self._search.trials or 0):
            return None
        number = len(trials) + len(left_out)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            task = next((trial.figures.task for trial in trials), CLASSIFICATION)
            study = optuna.create_study(
                sampler=self._sampler(number),
                directions=[
                    "minimize" if lower_is_better(goal, task) else "maximize"
                    for goal in self._search.wanted
                ],
            )
        study.add_trials(self._known(trials, left_out))
        return self._suggested(study.ask())

    def _sampler(self, number: int) -> BaseSampler:
        seed = int(np.random.SeedSequence([self._search.seed, number]).generate_state(1)[0])
        startup = self._options.startup_trials
        if self._options.sampler == "random":
            return RandomSampler(seed=seed)
        if self._options.sampler == "nsga2":
            return NSGAIISampler(seed=seed, population_size=max(2, startup))
        # running trials count as poor, so that the next suggestion differs from them
        return TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)

    def _suggested(self, trial: optuna.Trial) -> Values:
        """Values of all keys whose conditions are met; no values are suggested for the other
        keys."""
        values: Values = {}
        for key, dimension in ordered(self._search.space):
            if holds(dimension.when, values):
                values[key] = spec_value(
                    dimension, _suggest(trial, key, distribution_of(dimension))
                )
        return active(self._search.space, values)

    def _known(
        self, trials: Sequence[TrialFigures], left_out: Sequence[Values]
    ) -> Iterator[FrozenTrial]:
        done, longest = 0, longest_s(trials)
        for trial in trials:
            parameters = self._parameters(trial.values)
            known = [objective(trial, goal, longest) for goal in self._search.wanted]
            finite = [value for value in known if value is not None and math.isfinite(value)]
            whole = trial.counts and len(finite) == len(known)
            if trial.status in ("missing", "stopped"):  # running, or to be resumed
                yield create_trial(state=TrialState.RUNNING, **parameters)
            elif whole and trial.status == "pruned":
                steps = {max(trial.epochs, 1): finite[0]}
                yield create_trial(state=TrialState.PRUNED, intermediate_values=steps, **parameters)
            elif whole:
                generation = done // max(2, self._options.startup_trials)
                done += 1
                yield create_trial(
                    values=finite, system_attrs={_GENERATION: generation}, **parameters
                )
            else:
                yield create_trial(state=TrialState.FAIL, **parameters)
        for values in left_out:
            yield create_trial(state=TrialState.FAIL, **self._parameters(values))

    def _parameters(self, values: Mapping[str, Any]) -> dict[str, Any]:
        known = {key: self._search.space[key] for key in values if key in self._search.space}
        return {
            "params": {key: internal_value(each, values[key]) for key, each in known.items()},
            "distributions": {key: distribution_of(each) for key, each in known.items()},
        }


def _suggest(trial: optuna.Trial, key: str, wanted: BaseDistribution) -> Any:
    match wanted:
        case FloatDistribution():
            return trial.suggest_float(key, wanted.low, wanted.high, log=wanted.log)
        case IntDistribution():
            return trial.suggest_int(key, wanted.low, wanted.high, log=wanted.log)
        case CategoricalDistribution():
            return trial.suggest_categorical(key, wanted.choices)
