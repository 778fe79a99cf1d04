"""Parallel coordinates: a line for each trial, through its values to what it reached."""

from __future__ import annotations

from raysuite.records.derive import STATUS_WORDS
from raysuite.records.sweep import TrialFigures
from raysuite.report import text
from raysuite.report.plot import NEUTRAL, Plot, Trace, safe
from raysuite.report.sweep.axes import Axis, goal_axis, key_axis
from raysuite.report.sweep.colors import BY_RANK, rank_colors
from raysuite.report.sweep.study import TOLD, Study, goal_text, trial_name, value_text

MOST_AXES = 12
"""Keys that are drawn; with more, the lines between them cannot be followed."""
LEAST = 2
"""Trials that have begun; one line compares with nothing."""


def parallel(study: Study) -> Plot | None:
    """A line for each trial that has begun: faint where it ended early, dotted where it failed."""
    begun = [trial for trial in study.trials if trial.status != "missing"]
    if len(begun) < LEAST:
        return None
    axes = [key_axis(study, key) for key in study.keys[:MOST_AXES]] + [goal_axis(study)]
    colors = rank_colors(study.ranked)
    order = [*study.ranked, *(trial for trial in begun if trial not in study.ranked)]
    named: set[str] = set()
    lines = []
    for trial in reversed(order):  # the best on top
        line = _line(study, trial, axes, colors)
        lines.append({**line, "showlegend": line["name"] not in named})
        named.add(line["name"])
    more = len(study.keys) - MOST_AXES
    left_out = f" {text.count(more, 'more key')} in the table alone." if more > 0 else ""
    told = TOLD[study.goal].words
    return Plot(
        name="parallel",
        title="Parallel coordinates",
        note=f"A line is a trial; the last axis is the {told} that it reached, its best on top. "
        f"{BY_RANK} Trials that were stopped early are faint, failed ones dotted.{left_out}",
        description=f"{text.count(len(begun), 'trial')} over {len(axes) - 1} searched keys.",
        traces=[
            *(_drawn(axis, place) for place, axis in enumerate(axes)),
            *lines,
            *(_ticks(axis, place) for place, axis in enumerate(axes)),
        ],
        layout={
            "xaxis": {
                "tickvals": list(range(len(axes))),
                "ticktext": [safe(axis.title) for axis in axes],
                "range": [-0.15, len(axes) - 1 + max(0.45, 0.11 * len(axes))],
                "showgrid": False,
                "zeroline": False,
                "side": "top",
                "fixedrange": True,
            },
            "yaxis": {
                "visible": False,
                "range": [-0.18 if _absent(axes) else -0.06, 1.06],
                "fixedrange": True,
            },
            "height": 430,
        },
    )


def _absent(axes: list[Axis]) -> bool:
    return any(place < 0 for axis in axes for place, _ in axis.ticks)


def _drawn(axis: Axis, place: int) -> Trace:
    """The axis itself, from its lowest to its highest value."""
    spots = sorted({0.0, 1.0, *(spot for spot, _ in axis.ticks)})
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": axis.title,
        "x": [place] * len(spots),
        "y": spots,
        "line": {"color": NEUTRAL, "width": 1.5},
        "marker": {"color": NEUTRAL, "symbol": "square", "size": 3},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _ticks(axis: Axis, place: int) -> Trace:
    """What the ticks say, on the axis's right and above all lines."""
    return {
        "type": "scatter",
        "mode": "text",
        "name": axis.title,
        "x": [place] * len(axis.ticks),
        "y": [spot for spot, _ in axis.ticks],
        "text": [f"\u00a0\u00a0{safe(said)}" for _, said in axis.ticks],
        "textposition": "middle right",
        "textfont": {"size": 10.5, "shadow": "auto"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _line(study: Study, trial: TrialFigures, axes: list[Axis], colors: dict[int, str]) -> Trace:
    spots = [axis.places.get(trial.number) for axis in axes]
    known = [(x, y) for x, y in enumerate(spots) if y is not None]
    pruned, best = trial.status == "pruned", trial is study.best
    color = colors.get(trial.number, NEUTRAL)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"best: {trial_name(trial)}" if best else STATUS_WORDS[trial.status],
        "x": [x for x, _ in known],
        "y": [y for _, y in known],
        "line": {
            "color": color,
            "width": 4 if best else 1.4 if pruned else 2.2,
            "dash": "dot" if trial.number not in colors else "solid",
        },
        "marker": {"color": color, "size": 9 if best else 5, "symbol": "circle"},
        "opacity": 0.5 if pruned else 1.0,
        "hovertemplate": f"{told(study, trial)}<extra></extra>",
        "meta": {"keys": [trial_key(study, trial)]},
    }


def told(study: Study, trial: TrialFigures) -> str:
    """What a hover says of a trial: its state, what it reached, its values."""
    reached = [f"{TOLD[goal].words} {goal_text(goal, trial.goals[goal])}" for goal in study.goals]
    values = [
        f"{safe(key)} = {safe(value_text(trial.values[key]))}"
        for key in study.keys
        if key in trial.values
    ]
    state = f"{trial_name(trial)}: {STATUS_WORDS[trial.status]}, {_epochs(trial)}"
    return "<br>".join([f"<b>{state}</b>", *(safe(each) for each in reached), *values])


def _epochs(trial: TrialFigures) -> str:
    return text.count(trial.epochs, "epoch")


def trial_key(study: Study, trial: TrialFigures) -> list[str]:
    """What the page's filters look at: the state, and a text to search in."""
    values = " ".join(f"{key}={value_text(value)}" for key, value in trial.values.items())
    return [trial.status, f"{trial_name(trial)} {values}"]
