"""Two sweeps side by side: what each cost, and the best that each found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from raysuite.errors import UserError
from raysuite.records import Ratio, Results
from raysuite.records.names import dotted
from raysuite.records.statistics import ratio_of_shares
from raysuite.records.sweep import Goal
from raysuite.report.against import Comparison, Line, Measured
from raysuite.report.sweep.study import Study, study, trial_name
from raysuite.report.sweep.summary import accuracy_interval

MOST_DIFFERENCES = 6
"""Options that are named where the two differ in more."""


def other_sweep(asked: str) -> Study:
    """The sweep of the results folder that `--against` names. Raises UserError if there is none."""
    folder = Path(asked)
    found = study(Results.open(folder)) if folder.is_dir() else None
    if found is None:
        raise UserError(
            f"{asked} is no results folder of a sweep; a sweep's report takes another sweep's "
            "folder after --against"
        )
    return found


def against_sweep(ours: Study, theirs: Study, asked: str) -> Comparison:
    """Worker-seconds, epochs, trials and the best of each goal that both had."""
    title = Path(asked).resolve()
    return Comparison(
        asked=asked,
        title=f"{title.parent.name}/{title.name}",
        lines=tuple(_lines(ours, theirs)),
        unmatched=(),
        remarks=tuple(_remarks(ours, theirs)),
    )


def _lines(ours: Study, theirs: Study) -> Iterator[Line]:
    pair = (ours, theirs)
    left, right = (f"{each.name} ({each.scheduler})" for each in pair)

    def line(quantity: str, a: float, b: float) -> Line:
        ratio = Ratio(a / b, None, None) if b > 0 else None
        return Line(quantity, left, Measured(a), right, Measured(b), ratio=ratio)

    yield line("worker_seconds", *(each.worker_seconds for each in pair))
    yield line("epochs_trained", *(sum(t.epochs for t in each.trials) for each in pair))
    yield line("trials", *(len(each.trials) for each in pair))
    yield line("trials_stopped_early", *(len(each.of("pruned")) for each in pair))
    for goal in (goal for goal in ours.goals if goal in theirs.goals):
        found = _best_line(goal, ours, theirs)
        if found is not None:
            yield found


def _best_line(goal: Goal, ours: Study, theirs: Study) -> Line | None:
    a, b = (each.best_of(goal) for each in (ours, theirs))
    if a is None or b is None:
        return None
    values = []
    for trial in (a, b):
        value = trial.goals[goal]
        assert value is not None
        ends = accuracy_interval(trial) if goal == "accuracy" else (None, None)
        values.append(Measured(value, *ends))
    left, right = values
    if goal == "accuracy":
        images = (a.figures.val_samples, b.figures.val_samples)
        ratio = ratio_of_shares(left.value, right.value, *images)
    else:
        ratio = Ratio(left.value / right.value, None, None) if right.value > 0 else None
    quantity = {"accuracy": "best_accuracy", "time_to_accuracy": "time_to_accuracy_s"}
    return Line(
        quantity.get(goal, goal),
        f"{ours.name} ({ours.scheduler}), {trial_name(a)}",
        left,
        f"{theirs.name} ({theirs.scheduler}), {trial_name(b)}",
        right,
        ratio=ratio,
    )


def _remarks(ours: Study, theirs: Study) -> Iterator[str]:
    differ = list(_differences(ours, theirs))
    if differ:
        more = len(differ) - MOST_DIFFERENCES
        rest = f"; {more} more" if more > 0 else ""
        yield f"The sweeps differ in {'; '.join(differ[:MOST_DIFFERENCES])}{rest}."
    else:
        yield "Both sweeps have the same spec and the same search."
    same = _values(ours) == _values(theirs)
    yield "Both tried the same values." if same else "They did not try the same values."
    if ours.hosts != theirs.hosts:
        yield "They ran in different environments: their times may not compare."
    if "accuracy" in ours.goals:
        yield (
            "Intervals of accuracies are for the validation set's size alone (Wilson); both "
            "sweeps look at the same set."
        )
    yield "One sweep on each side: neither has a spread over seeds."


def _values(study: Study) -> list[str]:
    return sorted(json.dumps(trial.values, sort_keys=True) for trial in study.trials)


def _differences(ours: Study, theirs: Study) -> Iterator[str]:
    left, right = (
        dict(dotted({k: v for k, v in each.base.items() if k != "search"}))
        | dict(dotted(each.search, "search."))
        for each in (ours, theirs)
    )
    for key in dict.fromkeys((*left, *right)):
        if left.get(key) != right.get(key) and key not in ("name", "description"):
            a, b = (json.dumps(each.get(key)) for each in (left, right))
            yield f"{key} ({a}, theirs {b})"
