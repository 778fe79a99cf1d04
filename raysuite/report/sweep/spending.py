"""What a sweep cost: worker time by state, and the best so far over the worker time spent."""

from __future__ import annotations

from typing import Any

from raysuite.records.derive import STATUS_WORDS
from raysuite.records.sweep import LOWER_IS_BETTER, Goal, TrialFigures
from raysuite.report import text
from raysuite.report.plot import Plot, Trace, safe
from raysuite.report.sheet import Sheet
from raysuite.report.sweep.colors import STATE_COLORS
from raysuite.report.sweep.study import (
    STATES,
    TOLD,
    Study,
    cost,
    goal_text,
    trial_name,
    worker_time,
)

HOURS_FROM = 3600.0
"""Worker-seconds from which plots count in worker-hours."""


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


def costs(study: Study) -> Plot | None:
    """A bar for each trial, in the order in which they were decided, coloured by state."""
    if study.worker_seconds <= 0:
        return None
    scale = _scale(study.worker_seconds)
    traces: list[Trace] = []
    parts = []
    for state in STATES:
        trials = [trial for trial in study.of(state) if trial.worker_seconds > 0]
        if not trials:
            continue
        spent = sum(trial.worker_seconds for trial in trials)
        word = STATUS_WORDS[trials[0].status]
        parts.append(f"{word} {spent / study.worker_seconds:.0%}")
        traces.append(
            {
                "type": "bar",
                "name": word,
                "x": [str(trial.number) for trial in trials],
                "y": [trial.worker_seconds * scale for trial in trials],
                "marker": {"color": STATE_COLORS[state]},
                "customdata": [
                    [
                        f"{trial_name(trial)}: {word}, {text.count(trial.epochs, 'epoch')}",
                        worker_time(trial.worker_seconds),
                    ]
                    for trial in trials
                ],
                "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            }
        )
    return Plot(
        name="cost",
        title="Cost of each trial",
        note=f"{worker_time(study.worker_seconds)} over all trials: {', '.join(parts)}.",
        description=f"{text.count(len(study.trials), 'bar')}, one a trial.",
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": {
                "title": {"text": "trial"},
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [str(trial.number) for trial in study.trials],
            },
            "yaxis": {"title": {"text": unit_of(study.worker_seconds)}, "rangemode": "tozero"},
            "height": 360,
        },
    )


def anytime(study: Study) -> Plot | None:
    """The best so far over the worker time that all trials had taken by then."""
    trace = anytime_trace(study, "best so far", "#0072B2", study.worker_seconds)
    if trace is None:
        return None
    return Plot(
        name="anytime",
        title="Best so far over its cost",
        note=f"The best {TOLD[study.goal].words} that any trial had reached, over the worker time "
        "that all trials together had taken by then.",
        description=f"It ends at {goal_text(study.goal, trace['y'][-1])}.",
        traces=[trace],
        layout=anytime_layout(study.goal, unit_of(study.worker_seconds)),
    )


def anytime_layout(goal: Goal, unit: str) -> dict[str, Any]:
    """Axes of such a plot."""
    told = TOLD[goal]
    y: dict[str, Any] = {"title": {"text": told.axis}}
    if told.tickformat:
        y["tickformat"] = told.tickformat
    return {
        "xaxis": {"title": {"text": f"{unit} spent"}, "rangemode": "tozero"},
        "yaxis": y,
        "height": 360,
    }


def anytime_trace(
    study: Study, name: str, color: str, longest: float, dash: str = "solid"
) -> Trace | None:
    """The line, in the unit that suits `longest` worker-seconds; None where nothing was reached."""
    total, scale = study.worker_seconds, _scale(longest)
    points: list[tuple[float, float, str]] = []
    for time, value, trial in sorted(_reached(study), key=lambda each: each[0]):
        if points and cost(study.goal, value) >= cost(study.goal, points[-1][1]):
            continue
        spent = study.spent(time)
        said = f"{trial_name(trial)}: {goal_text(study.goal, value)}"
        points.append((spent * scale, value, f"{said}<br>after {worker_time(spent)}"))
    if not points:
        return None
    last = points[-1][1]
    said = f"at the end: {goal_text(study.goal, last)}<br>after {worker_time(total)}"
    points.append((total * scale, last, said))
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": safe(name),
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "line": {"color": color, "width": 2.5, "shape": "hv", "dash": dash},
        "marker": {"color": color, "size": 7, "symbol": "circle"},
        "customdata": [[said] for _, _, said in points],
        "hovertemplate": f"{safe(name)}<br>%{{customdata[0]}}<extra></extra>",
    }


def _reached(study: Study) -> list[tuple[float, float, TrialFigures]]:
    """When a trial reached a value of the goal; those that do not count are left out."""
    found: list[tuple[float, float, TrialFigures]] = []
    for trial in study.ranked:
        value = trial.goals[study.goal]
        assert value is not None
        epochs = trial.figures.epochs
        if study.goal == "accuracy":
            found += [(epoch.time, epoch.val_accuracy, trial) for epoch in epochs]
        elif study.goal in LOWER_IS_BETTER:  # when the target was met
            met = [epoch.time for epoch in epochs if epoch.elapsed_seconds >= value]
            found += [(time, value, trial) for time in met[:1]]
        elif trial.figures.end is not None:
            found.append((trial.figures.end.time, value, trial))
    return found


def unit_of(seconds: float) -> str:
    """The unit of a plot that reaches so far."""
    return "worker-hours" if seconds >= HOURS_FROM else "worker-seconds"


def _scale(seconds: float) -> float:
    """What worker-seconds are multiplied with for that unit."""
    return 1 / 3600 if seconds >= HOURS_FROM else 1.0
