"""BOHB (Falkner et al. 2018): kernel densities over good and poor values, by HpBandSter.

Its model alone is used; who ends trials early is the sweep's scheduler. The model is made anew
for each question from what the trials reached at each epoch, and its draws depend on the sweep's
seed and the trial's number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from raysuite.errors import MissingPartError
from raysuite.orchestrate.sweep.draws import numpys_draws, seed_of
from raysuite.orchestrate.sweep.parameters import found_in, ordered, parameter_of, value_of
from raysuite.orchestrate.sweep.reached import goes_on, longest_s, reached
from raysuite.plan.space import active
from raysuite.records.sweep import LOWER_IS_BETTER, TrialFigures
from raysuite.spec.search import SearchOptions, name_of

Values = dict[str, Any]


@dataclass(frozen=True)
class _Job:
    """A result, as HpBandSter reads it."""

    result: dict[str, float]
    kwargs: dict[str, Any]
    exception: str | None = None
    timestamps: dict[str, float] = field(default_factory=dict)


class BohbDecider:
    """The next values, by BOHB's model. Raises MissingPartError where its packages are missing."""

    def __init__(self, search: SearchOptions) -> None:
        try:
            self._space = import_module("ConfigSpace")
            self._model = import_module("hpbandster.optimizers.config_generators.bohb")
        except ImportError as error:
            raise MissingPartError(
                f"searcher bohb needs packages that are not installed ({error}); install them by "
                "`pip install hpbandster ConfigSpace`, or use searcher: optuna"
            ) from error
        self._search = search

    def next(self, trials: Sequence[TrialFigures], left_out: Sequence[Values]) -> Values | None:
        """What the model suggests after these trials; None after as many as were asked for."""
        if len(trials) >= (self._search.trials or 0):
            return None
        seed = seed_of(self._search.seed, len(trials) + len(left_out))
        with numpys_draws(seed):
            model = self._model.BOHB(self._configurations(seed))
            longest = longest_s(trials)
            for trial in trials:
                for budget, loss in self._losses(trial, longest):
                    known = self._known(trial.values)
                    model.new_result(_Job({"loss": loss}, {"budget": budget, "config": known}))
            found, _ = model.get_config(1)
        values: Values = {}
        for key, dimension in self._search.space.items():
            if key in found:
                values[key] = value_of(dimension, found[key])
        return active(self._search.space, values)

    def _losses(self, trial: TrialFigures, longest: float) -> list[tuple[int, float]]:
        """(epochs, what is to be small then) of each epoch; those of a trial that failed are bad,
        and of one that goes on there are none yet.

        Throughput, and seconds to an accuracy, are known of whole trials alone.
        """
        goal = self._search.wanted[0]
        if goes_on(trial):
            return []
        if not trial.counts:
            return [(1, np.inf)]
        if goal == "accuracy":
            best = np.maximum.accumulate([accuracy for _, _, accuracy in trial.curve])
            return [
                (epoch + 1, -value) for (epoch, _, _), value in zip(trial.curve, best, strict=True)
            ]
        value = reached(trial, goal, longest)
        if value is None:
            return [(1, np.inf)]
        return [(1, value if goal in LOWER_IS_BETTER else -value)]

    def _known(self, values: Values) -> Values:
        return {
            key: found_in(dimension, values[key])
            for key, dimension in self._search.space.items()
            if key in values
        }

    def _configurations(self, seed: int) -> Any:
        """ConfigSpace's form of the space, with its conditions."""
        cs = self._space
        space = cs.ConfigurationSpace(seed=seed)
        made: dict[str, Any] = {}
        for key, dimension in ordered(self._search.space):
            asked = parameter_of(dimension)
            if asked.kind == "choice":
                made[key] = cs.CategoricalHyperparameter(key, list(range(int(asked.high) + 1)))
            elif asked.kind == "int" and asked.low < asked.high:
                made[key] = cs.UniformIntegerHyperparameter(key, int(asked.low), int(asked.high))
            elif asked.kind == "int":
                made[key] = cs.CategoricalHyperparameter(key, [int(asked.low)])
            else:
                log = asked.kind == "log"
                made[key] = cs.UniformFloatHyperparameter(key, asked.low, asked.high, log=log)
            space.add(made[key])
            wanted = [
                cs.EqualsCondition(made[key], made[other], place)
                for other, value in dimension.when.items()
                for place in [self._place(other, value)]
            ]
            if wanted:
                space.add(wanted[0] if len(wanted) == 1 else cs.AndConjunction(*wanted))
        return space

    def _place(self, key: str, wanted: Any) -> int:
        listed = self._search.space[key].arguments
        return next(n for n, each in enumerate(listed) if name_of(each) == name_of(wanted))
