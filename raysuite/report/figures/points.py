"""Figures of rows as points with their intervals, and as the traces that join them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from raysuite.records import Ratio, Row, Stat
from raysuite.report import text
from raysuite.report.plot import Trace, key, safe

Value = Stat | Ratio
Figure = Callable[[Row], Value | None]


def middle(value: Value | None) -> float:
    """The mean, or the ratio."""
    if value is None:
        return 0.0
    return value.value if isinstance(value, Ratio) else value.mean


def ends(value: Value | None) -> tuple[float, float]:
    """How far the 95 % interval reaches below and above; zeros where there is none."""
    if isinstance(value, Ratio) and value.low is not None and value.high is not None:
        return value.value - value.low, value.high - value.value
    if isinstance(value, Stat) and value.low is not None and value.high is not None:
        return value.mean - value.low, value.high - value.mean
    return 0.0, 0.0


def means(values: Iterable[Value | None]) -> str:
    """What points stand for; of intervals only where some are drawn."""
    drawn = any(any(ends(value)) for value in values)
    return "means over repeats" + (" with 95 % intervals" if drawn else "")


def told(value: Value | None, write: text.Writer) -> str:
    """With its interval, for a hover."""
    return text.stat(value, write) if isinstance(value, Stat) else text.ratio(value)


def whiskers(values: Sequence[Value | None], scale: float = 1.0) -> dict[str, Any]:
    """plotly's error bars; none goes below zero."""
    pairs = [ends(value) for value in values]
    return {
        "type": "data",
        "symmetric": False,
        "array": [above * scale for _, above in pairs],
        "arrayminus": [
            min(below, middle(value)) * scale
            for (below, _), value in zip(pairs, values, strict=True)
        ],
        "visible": any(above or below for below, above in pairs),
        "thickness": 1.2,
        "width": 4,
    }


def details(rows: Sequence[Row], figure: Figure, write: text.Writer) -> dict[str, Any]:
    """What every trace of rows holds: its hover, and what the page's filters look at."""
    against = [
        f" against {safe(str(row.baseline))}" if isinstance(figure(row), Ratio) else ""
        for row in rows
    ]
    return {
        "customdata": [
            [safe(row.name), told(figure(row), write) + base]
            for row, base in zip(rows, against, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        "meta": {"keys": [key(row) for row in rows], "points": True},
    }


def line(
    rows: Sequence[Row],
    name: str,
    x: Callable[[Row], float],
    figure: Figure,
    write: text.Writer,
    style: Trace,
) -> Trace:
    """One line through the rows, from left to right."""
    ordered = sorted(rows, key=x)
    values = [figure(row) for row in ordered]
    return {
        "type": "scatter",
        "name": safe(name),
        "x": [x(row) for row in ordered],
        "y": [middle(value) for value in values],
        "error_y": whiskers(values),
        **details(ordered, figure, write),
        **style,
    }


def bar(
    rows: Sequence[Row],
    name: str,
    category: Callable[[Row], str],
    figure: Figure,
    write: text.Writer,
    color: str,
    scale: float = 1.0,
) -> Trace:
    """Upright bars, one for each row."""
    values = [figure(row) for row in rows]
    return {
        "type": "bar",
        "name": safe(name),
        "x": [safe(category(row)) for row in rows],
        "y": [middle(value) * scale for value in values],
        "error_y": whiskers(values, scale),
        "marker": {"color": color},
        **details(rows, figure, write),
    }
