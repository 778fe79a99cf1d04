"""The tables of a sweep: best trials, PBT steps, costs, failed trials, and all trials."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records.derive import STATUS_WORDS
from raysuite.records.names import key_names
from raysuite.records.sweep import TrialFigures
from raysuite.report import text
from raysuite.report.sweep.study import (
    STATES,
    Study,
    epochs_to_target,
    goal_text,
    is_number,
    trial_name,
    value_of_source,
    value_text,
    values_text,
)
from raysuite.report.tables import Column, Sheet, Style, sheet_from, sheet_of
from raysuite.spec.search import TIMES, Goal

MOST_BEST = 10
"""Largest number of lines in the table of the best trials."""


def sheets(study: Study) -> list[Sheet]:
    """The tables that are not empty, in the order of the page."""
    makers = (best_sheet, taken_sheet, costs_sheet, failed_sheet, trials_sheet)
    return [sheet for make in makers if (sheet := make(study)).cells]


def best_trials(study: Study) -> list[TrialFigures]:
    """The first trials of the Pareto front or, with one goal, of the ranked trials."""
    return (study.front or study.ranked)[:MOST_BEST]


def best_sheet(study: Study) -> Sheet:
    """The best trials by the first goal or, with several goals, the Pareto front."""
    shown = study.front or study.ranked
    title = "Pareto front" if study.front else "Best trials"
    cut = f": the first {MOST_BEST} of {len(shown)}" if len(shown) > MOST_BEST else ""
    note = (
        f"By {study.told(study.goal).words}, the best first. Failed trials are not ranked; a trial "
        "that was stopped early counts with its last results. n = 1 for every trial."
    )
    if timed := [goal for goal in study.goals if goal in TIMES]:
        note += (
            f" A {study.told(timed[0]).words} has the resolution of an epoch; it is followed by "
            "the number of epochs to the target."
        )
    columns, lines = trial_columns(study), best_trials(study)
    return sheet_of("best-trials", f"{title}{cut}", columns, lines, (note,), _style)


def trials_sheet(study: Study) -> Sheet:
    note = "A value is missing if a key's condition did not hold."
    return sheet_of("trials", "All trials", trial_columns(study), study.trials, (note,), _style)


def _style(trial: TrialFigures) -> Style:
    return "bad" if trial.status == "failed" else "" if trial.counts else "dim"


def trial_columns(study: Study) -> list[Column[TrialFigures]]:
    """The columns of a table of trials: rank, searched keys, goals, cost and state."""
    places = {trial.number: place for place, trial in enumerate(study.ranked, start=1)}
    return [
        Column("Trial", trial_name, lambda t: t.number, left=True),
        Column(
            "Rank", lambda t: str(places.get(t.number, text.NONE)), lambda t: places.get(t.number)
        ),
        *(_key_column(study, key, title) for key, title in key_names(study.keys).items()),
        *(_goal_column(study, goal) for goal in study.goals),
        Column("Epochs", lambda t: str(t.epochs), lambda t: t.epochs),
        Column("State", lambda t: STATUS_WORDS[t.status]),
        Column("Worker-seconds", lambda t: f"{t.worker_seconds:,.1f}", lambda t: t.worker_seconds),
        Column("Gate", lambda t: t.figures.gate),
    ]


def _key_column(study: Study, key: str, title: str) -> Column[TrialFigures]:
    values = [trial.values[key] for trial in study.trials if key in trial.values]
    return Column(
        title,
        lambda t: value_text(t.values[key]) if key in t.values else text.NONE,
        (lambda t: t.values.get(key)) if all(map(is_number, values)) else None,
    )


def _goal_column(study: Study, goal: Goal) -> Column[TrialFigures]:
    seconds = text.writer("s", (trial.goals.get(goal) for trial in study.trials))

    def write(trial: TrialFigures) -> str:
        value = trial.goals.get(goal)
        if goal in TIMES and value is not None:
            return f"{seconds(value)}{epochs_to_target(trial)}"
        return goal_text(goal, value, study.task)

    return Column(study.told(goal).words.capitalize(), write, lambda t: t.goals.get(goal))


def failed_sheet(study: Study) -> Sheet:
    lines = [
        {
            "Trial": trial_name(trial),
            "State": STATUS_WORDS[trial.status],
            "Reason": trial.reason,
            "Epochs": str(trial.epochs),
            "Values": values_text(trial.values, study.keys),
        }
        for trial in study.trials
        if not trial.counts
    ]
    return sheet_from("failed-trials", "Trials without a result", lines, ("Epochs",))


def taken_sheet(study: Study) -> Sheet:
    """A line for each time that a trial took another trial's weights, in the order of epochs."""
    title = study.task.main.title
    taken = sorted(
        ((turn, trial) for trial in study.trials for turn in trial.taken),
        key=lambda each: (each[0].epoch, each[1].number),
    )
    lines = [
        {
            "After epoch": str(turn.epoch + 1),
            "Trial": trial_name(trial),
            title: goal_text(study.quality, turn.value, study.task),
            "Place": f"{turn.place} of {turn.population}",
            "Takes those of": f"trial {turn.source_trial}",
            f"{title} there": goal_text(study.quality, value_of_source(study, turn), study.task),
            "Continues with": values_text(turn.values, study.keys),
        }
        for turn, trial in taken
    ]
    note = (
        "After each interval the worst trials take the weights and the optimiser's state of the "
        "best trials (Jaderberg et al. 2017). A trial's results before its first such step come "
        "from its own weights."
    )
    numbers = ("After epoch", title, f"{title} there")
    return sheet_from("taken-weights", "Weights taken from other trials", lines, numbers, (note,))


def costs_sheet(study: Study) -> Sheet:
    groups = [(STATUS_WORDS[of[0].status], of) for state in STATES if (of := study.of(state))]
    groups.append(("all", list(study.trials)))
    lines = [{"State": name} | _counted(of, study.worker_seconds) for name, of in groups]
    note = (
        "Worker-seconds: number of workers times wall clock, from each start of a trial to its "
        "last record, over all attempts and the search for its batch size. Not included are "
        "the start of Ray, the time between trials, searches that found no batch size, and "
        "attempts that --retry-failed repeated."
    )
    return sheet_from("sweep-costs", "Cost by state", lines, list(lines[0])[1:], (note,))


def _counted(trials: Sequence[TrialFigures], total: float) -> dict[str, str]:
    seconds = sum(trial.worker_seconds for trial in trials)
    return {
        "Trials": str(len(trials)),
        "Epochs": str(sum(trial.epochs for trial in trials)),
        "Worker-seconds": f"{seconds:,.1f}",
        "Worker-hours": f"{seconds / 3600:,.{4 if total < 3600 else 2}f}",
        "Share": text.percent(seconds / total) if total > 0 else text.NONE,
    }
