"""What a searcher learns of a trial: whether it has ended, and what it counts with."""

from __future__ import annotations

from collections.abc import Iterable

from raysuite.records.sweep import Goal, TrialFigures


def goes_on(trial: TrialFigures) -> bool:
    """Whether a trial is under way, or waits to be taken up again: it has no end on record."""
    return trial.status in ("missing", "stopped")


def longest_s(trials: Iterable[TrialFigures]) -> float:
    """Seconds that the longest of the trials that count has trained; no time to accuracy is above
    it."""
    curves = [trial.curve for trial in trials if trial.counts and trial.curve]
    return max((curve[-1][1] for curve in curves), default=0.0)


def reached(trial: TrialFigures, goal: Goal, longest: float) -> float | None:
    """What a trial counts with towards a goal; None where nothing can be learnt from it.

    `longest` is what `longest_s` says of all trials.

    One that missed its target accuracy has no time to it. It counts as slower than all that met
    it, and the slower, the less accurate it became: what is near the target is worth a search, and
    where nobody has met it yet, that is all there is to go by.
    """
    value, accuracy = trial.goals[goal], trial.goals["accuracy"]
    if goal != "time_to_accuracy" or value is not None or accuracy is None or not trial.counts:
        return value
    return longest * (2.0 - accuracy)
