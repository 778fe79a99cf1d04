"""Several goals against each other: every trial as a point, the Pareto front as a line."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from raysuite.records.derive import STATUS_WORDS
from raysuite.records.sweep import LOWER_IS_BETTER, Goal, TrialFigures, pareto
from raysuite.report import text
from raysuite.report.plot import Plot, Trace
from raysuite.report.sweep.colors import STATE_COLORS
from raysuite.report.sweep.parallel import told, trial_key
from raysuite.report.sweep.study import TOLD, Study, trial_name

FRONT = "#D55E00"
_SYMBOLS = {"finished": "circle", "pruned": "diamond"}


def fronts(study: Study) -> list[Plot]:
    """A plot for each pair of goals; none where there is one goal, or nothing has both."""
    pairs = itertools.combinations(study.goals, 2)
    made = [_front(study, first, second) for first, second in pairs]
    return [plot for plot in made if plot is not None]


def _front(study: Study, x: Goal, y: Goal) -> Plot | None:
    """The second goal upwards; the better ends are named."""
    both = [
        trial
        for trial in study.trials
        if trial.counts and trial.goals[x] is not None and trial.goals[y] is not None
    ]
    if not both:
        return None
    best = pareto(both, (x, y))
    states = [state for state in _SYMBOLS if any(t.status == state for t in both)]
    line = _line(study, best, x, y)
    among = " of these two" if len(study.goals) > 2 else ""
    return Plot(
        name=f"pareto-{x}-{y}".replace("_", "-"),
        title=f"Pareto front: {TOLD[y].words} over {TOLD[x].words}",
        note=f"A point is a trial. On the line, the front{among}: no other trial is better in one "
        f"goal and as good in the other. Better lies {_better(x, 'left', 'right')} and "
        f"{_better(y, 'down', 'up')}. Trials that were stopped early count with what they reached.",
        description=f"{text.count(len(both), 'trial')}, {len(best)} of them on the front: "
        f"{text.listed([trial_name(trial) for trial in best])}.",
        traces=[
            *(_points(study, [t for t in both if t.status == s], s, x, y) for s in states),
            line,
        ],
        layout={"xaxis": _axis(x), "yaxis": _axis(y), "height": 400},
    )


def _better(goal: Goal, low: str, high: str) -> str:
    return low if goal in LOWER_IS_BETTER else high


def _axis(goal: Goal) -> dict[str, Any]:
    told = TOLD[goal]
    return {"title": {"text": told.axis}} | (
        {"tickformat": told.tickformat} if told.tickformat else {}
    )


def _points(study: Study, trials: Sequence[TrialFigures], state: str, x: Goal, y: Goal) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": STATUS_WORDS[trials[0].status],
        "x": [trial.goals[x] for trial in trials],
        "y": [trial.goals[y] for trial in trials],
        "marker": {"color": STATE_COLORS[state], "size": 8, "symbol": _SYMBOLS[state]},
        "customdata": [[told(study, trial)] for trial in trials],
        "hovertemplate": "%{customdata[0]}<extra></extra>",
        "meta": {"keys": [trial_key(study, trial) for trial in trials], "points": True},
    }


def _line(study: Study, front: Sequence[TrialFigures], x: Goal, y: Goal) -> Trace:
    """As stairs: between two trials no more is reached than by the worse of them."""
    stairs = "hv" if x in LOWER_IS_BETTER else "vh"
    ordered = sorted(front, key=lambda trial: trial.goals[x] or 0.0)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "Pareto front",
        "x": [trial.goals[x] for trial in ordered],
        "y": [trial.goals[y] for trial in ordered],
        "line": {"color": FRONT, "width": 2, "dash": "solid", "shape": stairs},
        "marker": {"color": FRONT, "size": 11, "symbol": "star"},
        "customdata": [[told(study, trial)] for trial in ordered],
        "hovertemplate": "%{customdata[0]}<extra></extra>",
    }
