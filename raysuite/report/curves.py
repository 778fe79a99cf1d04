"""Plots over epochs: validation accuracy, training loss, learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from raysuite.records import EpochFinished, Row, RunFigures
from raysuite.report import text
from raysuite.report.plot import NEUTRAL, Look, Plot, Trace, key, safe

MOST_POINTS = 400
"""Points of one curve; longer ones are drawn as means of equal stretches of steps."""
MOST_MARKERS = 40

Curve = tuple[list[float], list[float]]


def accuracy(rows: Sequence[Row], look: Look) -> Plot | None:
    """Validation accuracy over epochs."""
    traces = _traces(rows, look, lambda run: _by_epoch(run, lambda e: e.val_accuracy), ".2%")
    if not traces:
        return None
    targets = {run.target_accuracy for row in rows for run in row.runs if run.target_accuracy}
    last = max(trace["x"][-1] for trace in traces)
    for target in sorted(targets):
        traces.insert(0, _level(f"target {text.percent(target)}", target, last))
    finals = [row.final_accuracy.mean for row in rows if row.final_accuracy]
    reached = f" Final accuracies lie from {text.percent(min(finals))} to " if finals else ""
    reached += f"{text.percent(max(finals))}." if finals else ""
    return Plot(
        name="accuracy",
        title="Validation accuracy",
        note="Top-1 over the whole validation set, mean over repeats.",
        description=f"One line per variant over epochs.{reached}",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "epochs"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "validation accuracy"}, "tickformat": ".0%"},
            "height": 420,
        },
    )


def loss(rows: Sequence[Row], look: Look) -> Plot | None:
    """Training loss over optimiser steps."""
    traces = _traces(rows, look, lambda run: _by_step(run, lambda e: e.losses), ".4f")
    if not traces:
        return None
    for trace in traces:
        trace["mode"] = "lines"
        trace["line"] |= {"width": 1.3}
    steps = max(e.first_step + len(e.losses) for run in _runs(rows) for e in run.epochs)
    stretch = math.ceil(steps / MOST_POINTS)
    means = f" Drawn as means of up to {stretch} steps." if stretch > 1 else ""
    return Plot(
        name="loss",
        title="Training loss",
        note=f"Mean loss of the global batch in each optimiser step, mean over repeats.{means}",
        description="One line per variant over optimiser steps.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "optimiser steps"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "training loss"}},
            "height": 420,
        },
    )


def learning_rate(rows: Sequence[Row], look: Look) -> Plot | None:
    """Learning rate over epochs, one line for all variants that share it."""
    longest = [
        (row, max(runs, key=lambda run: len(run.epochs))) for row in rows if (runs := _runs([row]))
    ]
    longest.sort(key=lambda pair: -len(pair[1].epochs))  # stable: else in the order of the table
    shared: list[tuple[list[float], RunFigures, list[Row]]] = []
    for row, run in longest:
        rates = [rate for epoch in run.epochs for rate in epoch.learning_rates]
        for known, _, members in shared:
            if known[: len(rates)] == rates:  # the same, or as far as an unfinished run came
                members.append(row)
                break
        else:
            shared.append((rates, run, [row]))
    if not shared:
        return None
    traces = []
    for _, run, members in shared:
        every = len(shared) == 1 and len(rows) > 1
        name = "all variants" if every else safe(text.listed([row.name for row in members], 2))
        steps, rates = _by_step(run, lambda e: e.learning_rates)
        epochs = [step / run.plan["steps_per_epoch"] for step in steps]
        trace = _trace(members[0], look, (epochs, rates), ".4g")
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


def _traces(
    rows: Sequence[Row], look: Look, curve: Callable[[RunFigures], Curve], digits: str
) -> list[Trace]:
    traces = []
    for row in rows:
        curves = [curve(run) for run in _runs([row])]
        if curves:
            traces.append(_trace(row, look, _mean_curve(curves), digits))
    return traces


def _trace(row: Row, look: Look, curve: Curve, digits: str) -> Trace:
    x, y = curve
    color = look.shade(row)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= MOST_MARKERS else "lines",
        "name": safe(row.name if row.status == "finished" else f"{row.name} ({row.status})"),
        "x": x,
        "y": y,
        "line": {"color": color, "dash": look.dash(row), "width": 1.8},
        "marker": {"color": color, "symbol": look.worker_symbol(row), "size": 6},
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
    """Values per step, counted from 1, thinned to means of equal stretches where there are many."""
    values = [value for epoch in run.epochs for value in figure(epoch)]
    steps = [epoch.first_step + n + 1.0 for epoch in run.epochs for n in range(len(figure(epoch)))]
    stretch = max(1, math.ceil(len(values) / MOST_POINTS))
    starts = range(0, len(values), stretch)
    return (
        [_mean(steps[start : start + stretch]) for start in starts],
        [_mean(values[start : start + stretch]) for start in starts],
    )


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over repeats at each place; a repeat that ended early counts as far as it came."""
    x = max((curve[0] for curve in curves), key=len)
    return x, [_mean([y[place] for _, y in curves if place < len(y)]) for place in range(len(x))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
