"""Search algorithms: choose the next trial's values, in advance or from earlier objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysuite.plan.space import Values, drawn
from raysuite.records.sweep import TrialFigures
from raysuite.spec.search import SearchOptions

if TYPE_CHECKING:
    from raysuite.orchestrate.sweep.optuna import OptunaAlgorithm


def search_algorithm_of(search: SearchOptions) -> Drawn | OptunaAlgorithm:
    """The search algorithm of a sweep: it keeps no state between calls."""
    if search.searcher.name == "optuna":
        from raysuite.orchestrate.sweep.optuna import OptunaAlgorithm

        return OptunaAlgorithm(search)
    return Drawn(search)


class Drawn:
    """Chooses values that do not depend on results of other trials."""

    def __init__(self, search: SearchOptions) -> None:
        self._search = search

    def next(self, trials: Sequence[TrialFigures], left_out: Sequence[Values]) -> Values | None:
        """The first values that no trial has and that are not in `left_out`; None if there are no
        more.

        `trials` are all trials so far, including running ones; `left_out` are infeasible values,
        for which there are no trials.
        """
        known: list[Mapping[str, Any]] = [*(trial.values for trial in trials), *left_out]
        for values in drawn(self._search, len(left_out)):
            if values in known:
                known.remove(values)
            else:
                return values
        return None
