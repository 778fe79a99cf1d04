"""Optuna, by its own ask and tell.

The study is made anew for each question, from what the trials reached, and its draws depend on
the sweep's seed and the trial's number alone: a sweep that is taken up again goes on as it would
have.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from raysuite.orchestrate.sweep.draws import seed_of
from raysuite.orchestrate.sweep.parameters import found_in, ordered, parameter_of, value_of
from raysuite.orchestrate.sweep.reached import goes_on, longest_s, reached
from raysuite.plan.space import active
from raysuite.records.sweep import LOWER_IS_BETTER, TrialFigures
from raysuite.spec.search import Dimension, SearchOptions, holds
from raysuite.spec.searchers import OptunaSearch

Values = dict[str, Any]

_GENERATION = "NSGAIISampler:generation"


class OptunaDecider:
    """The next values, by one of Optuna's samplers."""

    def __init__(self, search: SearchOptions) -> None:
        assert isinstance(search.searcher, OptunaSearch)
        self._search = search
        self._options = search.searcher
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def next(self, trials: Sequence[TrialFigures], left_out: Sequence[Values]) -> Values | None:
        """What the sampler suggests after these trials; None after as many as were asked for."""
        if len(trials) >= (self._search.trials or 0):
            return None
        number = len(trials) + len(left_out)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(
                sampler=self._sampler(number),
                directions=[
                    "minimize" if goal in LOWER_IS_BETTER else "maximize"
                    for goal in self._search.wanted
                ],
            )
        study.add_trials(self._known(trials, left_out))
        return self._suggested(study.ask())

    def _sampler(self, number: int) -> BaseSampler:
        seed = seed_of(self._search.seed, number)
        startup = self._options.startup_trials
        if self._options.sampler == "random":
            return RandomSampler(seed=seed)
        if self._options.sampler == "nsga2":
            return NSGAIISampler(seed=seed, population_size=max(2, startup))
        # those that are under way count as poor, so that the next one is another
        return TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)

    def _suggested(self, trial: optuna.Trial) -> Values:
        """Values of all keys whose conditions hold: the others are not asked for."""
        values: Values = {}
        for key, dimension in ordered(self._search.space):
            if holds(dimension.when, values):
                values[key] = value_of(dimension, _suggest(trial, key, dimension))
        return active(self._search.space, values)

    def _known(
        self, trials: Sequence[TrialFigures], left_out: Sequence[Values]
    ) -> Iterator[FrozenTrial]:
        done, longest = 0, longest_s(trials)
        for trial in trials:
            parameters = self._parameters(trial.values)
            known = [reached(trial, goal, longest) for goal in self._search.wanted]
            finite = [value for value in known if value is not None and math.isfinite(value)]
            whole = trial.counts and len(finite) == len(known)
            if goes_on(trial):
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
            "params": {key: found_in(each, values[key]) for key, each in known.items()},
            "distributions": {key: _distribution(each) for key, each in known.items()},
        }


def _distribution(dimension: Dimension) -> BaseDistribution:
    asked = parameter_of(dimension)
    match asked.kind:
        case "float" | "log":
            return FloatDistribution(asked.low, asked.high, log=asked.kind == "log")
        case "int":
            return IntDistribution(int(asked.low), int(asked.high))
        case "choice":
            return CategoricalDistribution(range(int(asked.high) + 1))


def _suggest(trial: optuna.Trial, key: str, dimension: Dimension) -> Any:
    asked = parameter_of(dimension)
    match asked.kind:
        case "float" | "log":
            return trial.suggest_float(key, asked.low, asked.high, log=asked.kind == "log")
        case "int":
            return trial.suggest_int(key, int(asked.low), int(asked.high))
        case "choice":
            return trial.suggest_categorical(key, range(int(asked.high) + 1))
