"""The tables of a sweep: the best trials, all of them, those that failed."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records.derive import STATUS_WORDS
from raysuite.records.names import key_name
from raysuite.records.sweep import Goal, TrialFigures
from raysuite.report import text
from raysuite.report.sheet import Sheet
from raysuite.report.sweep.lineage import taken_sheet
from raysuite.report.sweep.study import (
    STATES,
    TOLD,
    Study,
    goal_text,
    is_number,
    trial_name,
    value_text,
)
from raysuite.report.tables import Column

MOST_BEST = 10
"""Lines of the table of the best."""


def sheets(study: Study) -> list[Sheet]:
    """The tables that have anything in them, in the order of the page."""
    made = (
        *(best_sheet(study), taken_sheet(study), costs_sheet(study)),
        *(failed_sheet(study), trials_sheet(study)),
    )
    return [sheet for sheet in made if sheet.cells]


def best_trials(study: Study) -> list[TrialFigures]:
    """The first of the Pareto front, or of the trials that count."""
    return (study.front or study.ranked)[:MOST_BEST]


def best_sheet(study: Study) -> Sheet:
    """The best of the first goal, or the Pareto front of several, best of the first goal first."""
    shown = study.front or study.ranked
    title = "Pareto front" if study.front else "Best trials"
    more = len(shown) > MOST_BEST
    return _sheet(
        study,
        "best-trials",
        f"{title}: the first {MOST_BEST} of {len(shown)}" if more else title,
        best_trials(study),
        notes=(
            f"By {TOLD[study.goal].words}, the best first. Failed trials never win; one that was "
            "stopped early counts with what it reached. n = 1 for every trial.",
        ),
    )


def trials_sheet(study: Study) -> Sheet:
    """Every trial in the order in which it was decided."""
    return _sheet(
        study,
        "trials",
        "All trials",
        study.trials,
        notes=("A value is missing where a key's condition did not hold.",),
    )


def trial_columns(study: Study) -> list[Column[TrialFigures]]:
    """What a table tells of a trial: its rank, the searched keys, the goals, its cost and state."""
    places = {trial.number: place for place, trial in enumerate(study.ranked, start=1)}
    return [
        Column("Trial", trial_name, lambda t: t.number, number=False),
        Column(
            "Rank",
            lambda t: str(places.get(t.number, text.NONE)),
            lambda t: places.get(t.number),
        ),
        *(_key_column(study, key, title) for key, title in key_titles(study).items()),
        *(_goal_column(goal) for goal in study.goals),
        Column("Epochs", lambda t: str(t.epochs), lambda t: t.epochs),
        Column("State", lambda t: STATUS_WORDS[t.status], lambda t: t.status, number=False),
        Column("Worker-seconds", lambda t: f"{t.worker_seconds:,.1f}", lambda t: t.worker_seconds),
        Column("Gate", lambda t: t.figures.gate, lambda t: t.figures.gate, number=False),
    ]


def key_titles(study: Study) -> dict[str, str]:
    """The searched keys by their last part, or by all of it where that tells no two apart."""
    short = [*map(key_name, study.keys)]
    return {
        key: name if short.count(name) == 1 else key
        for key, name in zip(study.keys, short, strict=True)
    }


def _key_column(study: Study, key: str, title: str) -> Column[TrialFigures]:
    values = [trial.values[key] for trial in study.trials if key in trial.values]
    number = all(map(is_number, values))
    return Column(
        title,
        lambda t: value_text(t.values[key]) if key in t.values else text.NONE,
        lambda t: (
            (t.values[key] if number else value_text(t.values[key])) if key in t.values else None
        ),
        number,
    )


def _goal_column(goal: Goal) -> Column[TrialFigures]:
    return Column(
        TOLD[goal].words.capitalize(),
        lambda t: goal_text(goal, t.goals[goal]),
        lambda t: t.goals[goal],
    )


def _sheet(
    study: Study, name: str, title: str, trials: Sequence[TrialFigures], notes: tuple[str, ...]
) -> Sheet:
    shown = trial_columns(study)
    return Sheet(
        name=name,
        title=title,
        header=tuple(column.title for column in shown),
        cells=tuple(tuple(column.write(trial) for column in shown) for trial in trials),
        numbers=frozenset(column.title for column in shown if column.number),
        notes=notes,
    )


def failed_sheet(study: Study) -> Sheet:
    """Trials that ended without a result, or have none so far, and why."""
    without = [trial for trial in study.trials if not trial.counts]
    return Sheet(
        name="failed-trials",
        title="Trials without a result",
        header=("Trial", "State", "Reason", "Epochs", "Values"),
        cells=tuple(
            (
                trial_name(trial),
                STATUS_WORDS[trial.status],
                trial.reason,
                str(trial.epochs),
                ", ".join(
                    f"{key}={value_text(trial.values[key])}"
                    for key in study.keys
                    if key in trial.values
                ),
            )
            for trial in without
        ),
        numbers=frozenset(("Epochs",)),
    )


def costs_sheet(study: Study) -> Sheet:
    """Trials, epochs and worker-seconds by state."""
    total = study.worker_seconds
    cells = []
    for state in STATES:
        trials = study.of(state)
        if trials:
            seconds = sum(trial.worker_seconds for trial in trials)
            share = text.percent(seconds / total) if total > 0 else text.NONE
            cells.append((STATUS_WORDS[trials[0].status], *_counted(trials), share))
    cells.append(("all", *_counted(list(study.trials)), text.percent(1.0) if total else text.NONE))
    return Sheet(
        name="sweep-costs",
        title="Cost by state",
        header=("State", "Trials", "Epochs", "Worker-seconds", "Worker-hours", "Share"),
        cells=tuple(cells),
        numbers=frozenset(("Trials", "Epochs", "Worker-seconds", "Worker-hours", "Share")),
        notes=(
            "Worker-seconds: workers times the wall clock from each start of a trial to its last "
            "record, over all attempts, and that of the search for its batch. Starting Ray and "
            "what lies between trials is not in it, nor are searches that found no batch, and "
            "attempts that were made again with --retry-failed.",
        ),
    )


def _counted(trials: list[TrialFigures]) -> tuple[str, str, str, str]:
    seconds = sum(trial.worker_seconds for trial in trials)
    epochs = sum(trial.epochs for trial in trials)
    return (
        str(len(trials)),
        str(epochs),
        f"{seconds:,.1f}",
        f"{seconds / 3600:,.4f}" if seconds < 3600 else f"{seconds / 3600:,.2f}",
    )
