"""Trials that were trained as a population: which of them took the weights of which, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raysuite.records.judged import RunJudged, Stretch, lineage
from raysuite.records.sweep import TrialFigures
from raysuite.report import text
from raysuite.report.sweep.study import Study, trial_name, values_text
from raysuite.report.tables import Sheet, sheet_from


def judged_within(study: Study) -> int | None:
    """Epochs before any trial could take another's weights; None where none ever took any."""
    first = [trial.turns[0].epoch + 1 for trial in study.trials if trial.turns]
    return min(first) if any(trial.taken for trial in study.trials) else None


def way_of(study: Study, trial: TrialFigures) -> list[Stretch]:
    """The history of a trial's final weights: the trials and values that they were trained in, from
    the first epoch on."""
    members = {each.run_id: each.member for each in study.trials}
    return lineage(members, trial.run_id, trial.epochs)


def way_words(study: Study, trial: TrialFigures) -> list[str]:
    """`epochs 1 to 4 in trial 1 with lr=0.1`, a text for each stretch."""
    return [
        f"epoch{'s' if each.end - each.first > 1 else ''} "
        f"{_span(each)} in trial {each.trial} with {values_text(each.values, study.keys)}"
        for each in way_of(study, trial)
    ]


def _span(stretch: Stretch) -> str:
    first, last = stretch.first + 1, stretch.end
    return str(last) if first == last else f"{first} to {last}"


def taken_sheet(study: Study) -> Sheet:
    """Each time that a trial took the weights of another, in order."""
    taken = sorted(
        ((turn, trial) for trial in study.trials for turn in trial.taken),
        key=lambda each: (each[0].epoch, each[1].number),
    )
    lines = [
        {
            "After epoch": str(turn.epoch + 1),
            "Trial": trial_name(trial),
            "Accuracy": _percent(turn.value),
            "Place": f"{turn.place} of {turn.population}",
            "Takes those of": f"trial {turn.source_trial}",
            "Accuracy there": _percent(accuracy_there(study, turn)),
            "Goes on with": values_text(turn.values, study.keys),
        }
        for turn, trial in taken
    ]
    note = (
        "At each interval the worst trials take the weights and the optimiser's state of the "
        "best (Jaderberg et al. 2017). What a trial reached before is of its own weights."
    )
    numbers = ("After epoch", "Accuracy", "Accuracy there")
    title = "Weights taken from other trials"
    return sheet_from("taken-weights", title, lines, numbers, (note,))


def _percent(value: float | None) -> str:
    return text.NONE if value is None else text.percent(value)


def accuracy_there(study: Study, turn: RunJudged) -> float | None:
    """The source's accuracy after that epoch."""
    curves = {trial.run_id: trial.curve for trial in study.trials}
    curve = curves.get(turn.source or "", ())
    return next((accuracy for epoch, _, accuracy in curve if epoch == turn.epoch), None)


def sentences(study: Study) -> Iterator[str]:
    """The history of the best trial's weights."""
    best, taken = study.best, sum(len(trial.taken) for trial in study.trials)
    if not taken:
        return
    yield f"Trials took the weights of others {text.count(taken, 'time')}."
    if best is not None and best.taken:
        way = "; ".join(way_words(study, best))
        yield f"The weights of {trial_name(best)} were trained in {way}."


def caveat(study: Study) -> Iterator[str]:
    """A note for tables of such trials."""
    if any(trial.taken for trial in study.trials):
        yield (
            "Values in tables and parallel coordinates are those that a trial began with; pbt "
            "changed some on the way, so that a trial's result is not due to them alone."
        )


def lines(study: Study, trials: Sequence[TrialFigures]) -> list[dict[str, Any]]:
    """The histories of trials' weights as plain data."""
    return [
        {
            "trial": trial.number,
            "way": [
                {
                    "trial": s.trial,
                    "first_epoch": s.first,
                    "end_epoch": s.end,
                    "values": dict(s.values),
                }
                for s in way_of(study, trial)
            ],
        }
        for trial in trials
        if trial.turns
    ]
