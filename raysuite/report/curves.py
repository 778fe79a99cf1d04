"""Plots over epochs: validation accuracy, training loss, learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from raysuite.records import EpochFinished, Row, RunFigures
from raysuite.records.statistics import accuracy as accuracy_of
from raysuite.report import text
from raysuite.report.facets import WORK, shared, telling, written
from raysuite.report.figures.panels import ACCURACY, panelled
from raysuite.report.figures.points import whiskers
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import NEUTRAL, Plot, Trace, key, safe

MOST_POINTS = 400
"""Points of one curve; longer ones are drawn as means of equal stretches of steps."""
MOST_MARKERS = 40
PANEL_HEIGHT = 330

Curve = tuple[list[float], list[float]]


def accuracy(rows: Sequence[Row], styles: Styles, intervals: bool = False) -> Plot | None:
    """Validation accuracy over epochs; with the intervals over repeats where asked for."""
    panels = _panels(rows, styles, lambda run: _by_epoch(run, lambda e: e.val_accuracy), ".2%")
    if not panels:
        return None
    targets = {run.target_accuracy for row in rows for run in row.runs if run.target_accuracy}
    finals = [row.final_accuracy.mean for row in rows if row.final_accuracy]
    reached = f" Final accuracies lie from {text.percent(min(finals))} to " if finals else ""
    reached += f"{text.percent(max(finals))}." if finals else ""
    drawn: dict[str, list[Trace]] = {}
    for heading, lines in panels.items():
        if intervals:
            for row, trace in lines:
                _add_intervals(trace, row)
        last = max(trace["x"][-1] for _, trace in lines)
        levels = [_level(f"target {text.percent(each)}", each, last) for each in sorted(targets)]
        drawn[heading] = [*levels, *(trace for _, trace in lines)]
    return panelled(
        name="accuracy",
        title="Validation accuracy",
        note="Top-1 over the whole validation set, mean over repeats.",
        description=f"One line per variant over epochs.{reached}",
        panels=drawn,
        x={"title": {"text": "epochs"}, "rangemode": "tozero"},
        y=ACCURACY,
        height=PANEL_HEIGHT,
    )


def loss(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Training loss over optimiser steps."""
    panels = _panels(rows, styles, lambda run: _by_step(run, lambda e: e.losses), ".4f")
    if not panels:
        return None
    drawn = {heading: [trace for _, trace in lines] for heading, lines in panels.items()}
    for trace in (trace for lines in drawn.values() for trace in lines):
        trace["x"], trace["y"] = _thinned((trace["x"], trace["y"]))
        trace["mode"] = "lines"
        trace["line"] |= {"width": 1.3}
    steps = max(e.first_step + len(e.losses) for run in _runs(rows) for e in run.epochs)
    stretch = math.ceil(steps / MOST_POINTS)
    means = f" Drawn as means of up to {stretch} steps." if stretch > 1 else ""
    return panelled(
        name="loss",
        title="Training loss",
        note=f"Mean loss of the global batch in each optimiser step, mean over repeats.{means}",
        description="One line per variant over optimiser steps.",
        panels=drawn,
        x={"title": {"text": "optimiser steps"}, "rangemode": "tozero"},
        y={"title": {"text": "training loss"}},
        height=PANEL_HEIGHT,
    )


def learning_rate(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Learning rate over epochs, one line for all variants that share it."""
    longest = [
        (row, max(runs, key=lambda run: len(run.epochs))) for row in rows if (runs := _runs([row]))
    ]
    longest.sort(key=lambda pair: -len(pair[1].epochs))  # stable: else in the order of the table
    alike: list[tuple[list[float], RunFigures, list[Row]]] = []
    for row, run in longest:
        rates = [rate for epoch in run.epochs for rate in epoch.learning_rates]
        for known, _, members in alike:
            if known[: len(rates)] == rates:  # the same, or as far as an unfinished run came
                members.append(row)
                break
        else:
            alike.append((rates, run, [row]))
    if not alike:
        return None
    traces = []
    names = telling(rows)
    for _, run, members in alike:
        every = len(alike) == 1 and len(rows) > 1
        name = "all variants" if every else safe(_common(members, names, len(rows)))
        steps, rates = _thinned(_by_step(run, lambda e: e.learning_rates))
        epochs = [step / run.plan["steps_per_epoch"] for step in steps]
        trace = _trace(members[0], names, styles, (epochs, rates), ".4g")
        style = {"dash": "solid"} if every else {}
        trace |= {"name": name, "mode": "lines", "line": trace["line"] | style}
        trace["meta"] = {"keys": [key(row) for row in members]}
        traces.append(trace)
    return Plot(
        name="learning-rate",
        title="Learning rate",
        note="The rate that each optimiser step used. Variants with the same rates share a line.",
        description=f"{text.count(len(traces), 'line')} over epochs.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "epochs"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "learning rate"}, "rangemode": "tozero"},
            "height": 360,
        },
    )


def _runs(rows: Sequence[Row]) -> list[RunFigures]:
    """The runs with something to draw: those that the gate caught have no say."""
    return [run for row in rows for run in row.runs if run.epochs and run.gate != "failed"]


def _common(members: Sequence[Row], names: Sequence[str], total: int) -> str:
    """What the members share of that which tells rows apart, else their names."""
    said = shared(members, names)
    return said or text.listed([written(row, names) or row.name for row in members], 2)


def _panels(
    rows: Sequence[Row], styles: Styles, curve: Callable[[RunFigures], Curve], digits: str
) -> dict[str, list[tuple[Row, Trace]]]:
    """A line for each row that has begun; a panel for each network and data set."""
    names = telling(rows, always=WORK)
    within = [name for name in names if name not in WORK]
    panels: dict[str, list[tuple[Row, Trace]]] = {}
    for row in rows:
        curves = [curve(run) for run in _runs([row])]
        if curves:
            heading = written(row, [name for name in names if name in WORK])
            trace = _trace(row, within, styles, _mean_curve(curves), digits)
            panels.setdefault(heading, []).append((row, trace))
    return panels


def _add_intervals(trace: Trace, row: Row) -> None:
    """95 % intervals over the repeats that came so far: at each epoch, or where these are many at
    some, the last among them."""
    curves = [[epoch.val_accuracy for epoch in run.epochs] for run in _runs([row])]
    samples = min(run.val_samples for run in row.runs)
    stats = [
        accuracy_of((y[place] for y in curves if place < len(y)), samples)
        for place in range(len(trace["x"]))
    ]
    every = math.ceil(len(stats) / MOST_MARKERS)
    shown = [
        None if (len(stats) - place) % every else stat for place, stat in enumerate(stats, start=1)
    ]
    trace["error_y"] = whiskers(shown) | ({"width": 0} if every > 1 else {})


def _trace(row: Row, names: Sequence[str], styles: Styles, curve: Curve, digits: str) -> Trace:
    x, y = curve
    name = written(row, names) or shared([row], ("strategy", "loader"))
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= MOST_MARKERS else "lines",
        "name": safe(name if row.status == "finished" else f"{name} ({row.status})"),
        "x": x,
        "y": y,
        **styles.curve(row, names),
        "hovertemplate": f"%{{fullData.name}}<br>%{{x:.4~g}}: %{{y:{digits}}}<extra></extra>",
        "meta": {"keys": [key(row)]},
    }


def _level(name: str, value: float, last: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [0, last],
        "y": [value, value],
        "line": {"color": NEUTRAL, "dash": "dot", "width": 1.5},
        "hoverinfo": "skip",
    }


def _by_epoch(run: RunFigures, figure: Callable[[EpochFinished], float]) -> Curve:
    return [epoch.epoch + 1.0 for epoch in run.epochs], [figure(epoch) for epoch in run.epochs]


def _by_step(run: RunFigures, figure: Callable[[EpochFinished], list[float]]) -> Curve:
    """Values per step, counted from 1."""
    steps = [epoch.first_step + n + 1.0 for epoch in run.epochs for n in range(len(figure(epoch)))]
    return steps, [value for epoch in run.epochs for value in figure(epoch)]


def _thinned(curve: Curve) -> Curve:
    """Means of equal stretches of steps where there are many; after the mean over repeats, as
    these may differ in length."""
    x, y = curve
    stretch = max(1, math.ceil(len(x) / MOST_POINTS))
    starts = range(0, len(x), stretch)
    return (
        [_mean(x[start : start + stretch]) for start in starts],
        [_mean(y[start : start + stretch]) for start in starts],
    )


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over repeats at each place; a repeat that ended early counts as far as it came."""
    x = max((curve[0] for curve in curves), key=len)
    return x, [_mean([y[place] for _, y in curves if place < len(y)]) for place in range(len(x))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
