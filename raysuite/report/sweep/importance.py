"""Importance of the searched keys for the goal: fANOVA, with its spread over resampled trials."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysuite.records.sweep import TrialFigures
from raysuite.report import text
from raysuite.report.sweep.study import Study, is_number
from raysuite.spec.search import QUALITY, Goal

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LEAST = 8
"""Smallest number of trials for which importances are reported; fewer trials give noise."""
FEW = 30
"""With fewer trials, the plot's note states that the estimate is rough."""
RESAMPLES = 20
"""Number of bootstrap samples of the trials. A random forest is fitted to each sample."""
TREES = 16
MIDDLE = 0.8
"""Share of the bootstrap samples whose importances lie between the whiskers of the plot."""

Sample = list[tuple[TrialFigures, float]]
"""Trials, each with the value by which they are compared."""


@dataclass(frozen=True)
class Importance:
    """Share of the goal's variance that one key alone explains: the median over the bootstrap
    samples, and the limits that contain the middle 80 % of them. Interactions of keys, and noise,
    explain the rest."""

    key: str
    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Importances:
    """The importance of each key, the largest first, or the reason why there is none."""

    goal: Goal
    trials: int
    """Number of trials from which importances are computed."""
    judged: str
    """The quantity by which trials were compared, as text."""
    resamples: int = 0
    """Number of bootstrap samples whose trials have different results."""
    keys: tuple[Importance, ...] = ()
    left_out: tuple[str, ...] = ()
    """Keys that some of the trials do not have."""
    message: str = ""


def importances(study: Study) -> Importances:
    """fANOVA (Hutter et al. 2014, ICML, "An Efficient Approach for Assessing Hyperparameter
    Importance") by optuna, for the first goal.

    If trials were stopped early, all are compared by their best value up to the last epoch that
    every trial finished, because the trials that continued are a biased sample. If trials took the
    weights of other trials (PBT), only epochs up to the first PBT step are used.
    """
    sample, judged = _sample(study)
    keys = [key for key in study.keys if all(key in trial.values for trial, _ in sample)]
    varied = [key for key in keys if len({_written(t.values[key]) for t, _ in sample}) > 1]
    left_out = tuple(key for key in study.keys if key not in keys)

    def nothing(why: str) -> Importances:
        message = f"Importance of parameters: not reported, because {why}."
        return Importances(study.goal, len(sample), judged, left_out=left_out, message=message)

    if len(sample) < LEAST:
        few = text.count(len(sample), "trial")
        return nothing(f"only {few} can be compared, and at least {LEAST} are needed")
    if len(varied) < 2:
        return nothing("fewer than two keys varied")
    if len({value for _, value in sample}) == 1:
        return nothing("all trials have equal results")
    logs = [key for key in varied if "log" in study.kind(key)]
    drawn = _resampled(sample, varied, logs)
    if len(drawn) < RESAMPLES / 2:
        return nothing("nearly all trials have equal results")
    found = [Importance(key, *_middle([each[key] for each in drawn])) for key in varied]
    found.sort(key=lambda each: (-each.middle, each.key))
    return Importances(study.goal, len(sample), judged, len(drawn), tuple(found), left_out)


def _sample(study: Study) -> tuple[Sample, str]:
    told = study.told(study.goal).words
    own = None  # epochs before any trial could take another trial's weights
    if any(trial.taken for trial in study.trials):
        own = min(trial.turns[0].epoch + 1 for trial in study.trials if trial.turns)
    if study.goal in QUALITY and (study.of("pruned") or own):
        began = [trial for trial in study.trials if trial.counts and trial.curve]
        epochs = min((trial.epochs for trial in began), default=0)
        epochs = min(epochs, own or epochs)
        best = min if study.lower_is_better(study.goal) else max
        reached = [(trial, best(value for _, _, value in trial.curve[:epochs])) for trial in began]
        title = study.task.main.title.lower()
        return reached, f"{title} within {text.count(epochs, 'epoch')}"
    return [
        (trial, value)
        for trial in study.ranked
        if (value := trial.goals.get(study.goal)) is not None
    ], told


def _resampled(sample: Sample, keys: Sequence[str], logs: Sequence[str]) -> list[dict[str, float]]:
    import numpy as np

    trials = _optuna_trials(sample, keys, logs)
    chance = np.random.default_rng(0)
    picks = [chance.integers(0, len(trials), len(trials)) for _ in range(RESAMPLES)]
    drawn = [_fanova([trials[place] for place in pick], seed) for seed, pick in enumerate(picks)]
    return [{key: each.get(key, 0.0) for key in keys} for each in drawn if each is not None]


def _optuna_trials(sample: Sample, keys: Sequence[str], logs: Sequence[str]) -> list[FrozenTrial]:
    """The trials for optuna: numbers as floats (logarithms for the keys in `logs`, which were drawn
    on a logarithmic scale), other values as categories."""
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.trial import create_trial

    spaces: dict[str, BaseDistribution] = {}
    columns: dict[str, list[Any]] = {}
    for key in keys:
        values = [trial.values[key] for trial, _ in sample]
        if all(map(is_number, values)):
            columns[key] = [math.log(value) if key in logs else float(value) for value in values]
            spaces[key] = FloatDistribution(min(columns[key]), max(columns[key]))
        else:
            columns[key] = [_written(value) for value in values]
            spaces[key] = CategoricalDistribution(sorted(set(columns[key])))
    return [
        create_trial(
            params={key: columns[key][place] for key in keys}, distributions=spaces, value=value
        )
        for place, (_, value) in enumerate(sample)
    ]


def _fanova(trials: Sequence[FrozenTrial], seed: int) -> dict[str, float] | None:
    """Importance by key; None if no tree finds a split, because the trials have equal results."""
    import optuna
    from optuna.importance import FanovaImportanceEvaluator

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.WARNING)
    try:
        made = optuna.create_study(storage=optuna.storages.InMemoryStorage())
        made.add_trials(trials)
        found = FanovaImportanceEvaluator(n_trees=TREES, seed=seed).evaluate(made)
    except RuntimeError:
        return None
    finally:
        optuna.logging.set_verbosity(before)
    return {key: float(value) for key, value in found.items()}


def _middle(values: Sequence[float]) -> tuple[float, float, float]:
    import numpy as np

    low, middle, high = np.quantile(values, [(1 - MIDDLE) / 2, 0.5, (1 + MIDDLE) / 2])
    return float(middle), float(low), float(high)


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
