"""Choose the values of a sweep's next trial: the next values of a fixed list, or values that Optuna
suggests from the results of earlier trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysuite.plan.space import Values, drawn
from raysuite.records.sweep import TrialFigures
from raysuite.spec.search import SearchOptions


def next_values(
    search: SearchOptions, trials: Sequence[TrialFigures], left_out: Sequence[Values]
) -> Values | None:
    """The values of a sweep's next trial; None if there are no more.

    Optuna suggests them, or they are the first drawn values that are neither in `trials` nor in
    `left_out`; values that are drawn twice get two trials. `trials` are all trials so far,
    including running ones; `left_out` are values that give no valid spec, and so no trial.
    """
    if search.searcher.name == "optuna":
        from raysuite.orchestrate.sweep.optuna import OptunaAlgorithm

        return OptunaAlgorithm(search).next(trials, left_out)
    known: list[Mapping[str, Any]] = [*(trial.values for trial in trials), *left_out]
    for values in drawn(search, len(left_out)):
        if values not in known:
            return values
        known.remove(values)
    return None
