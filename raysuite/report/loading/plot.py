"""Loaders' speeds as bars, one colour per number of threads."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records.loading import LoadingRow
from raysuite.report import text
from raysuite.report.plot import (
    BAR_PX,
    NEUTRAL,
    SHADES,
    Plot,
    Style,
    Trace,
    bars,
    labels,
    quantity,
)

FARTHEST = 3.0
"""Limits beyond so many times the fastest of the others are told, not drawn: all bars beside them
would be too short to compare."""


def speeds(rows: Sequence[LoadingRow]) -> Plot | None:
    """Images per second of each candidate; None where nothing was measured."""
    measured = [row for row in rows if row.throughput]
    ruling = [row for row in measured if _drawn_always(row)] or measured
    if not measured:
        return None
    bound = FARTHEST * max(_mean(row) for row in ruling)
    shown = [row for row in measured if _mean(row) <= bound]
    widths = sorted({row.candidate.width for row in shown})
    styles = {
        f"{width} at work" if width else "nothing loaded": Style(
            SHADES[place % len(SHADES)] if width else NEUTRAL
        )
        for place, width in enumerate(widths)
    }
    traces = [
        _bars([row for row in shown if row.candidate.width == width], series)
        for width, series in zip(widths, styles, strict=True)
    ]
    far = [
        f"{row.candidate.name} {text.stat(row.throughput, single='')}"
        for row in measured
        if row not in shown
    ]
    note = "Bars are means over rounds; whiskers are 95 % intervals."
    if far:
        note += f" Too far to be drawn, images/s: {text.listed(far, most=8)}."
    best = max(shown, key=_mean)
    return Plot(
        name="loaders",
        title="Images per second",
        note=note,
        description=f"Bars per loader and number of threads; the longest is {best.candidate.name} "
        f"with {text.number(_mean(best))} images/s.",
        traces=traces,
        layers=bars(),
        x=quantity("images per second"),
        y=labels(list(dict.fromkeys(row.candidate.series for row in shown))),
        styles=styles,
        height=BAR_PX,
        bars_per_label=len(widths),
        wide=True,
    )


def _bars(rows: Sequence[LoadingRow], series: str) -> Trace:
    stats = [row.throughput for row in rows]
    return {
        "kind": "bar",
        "series": series,
        "y": [row.candidate.series for row in rows],
        "x": [_mean(row) for row in rows],
        "low": [stat.low if stat else None for stat in stats],
        "high": [stat.high if stat else None for stat in stats],
        "tip": [
            f"{row.candidate.name}\n{text.stat(row.throughput)} images/s\n"
            f"{text.ratio(row.of_decoding)} of bare decoding"
            for row in rows
        ],
    }


def _drawn_always(row: LoadingRow) -> bool:
    """A loader that reads, or bare decoding: what the plot is for."""
    if row.candidate.kind == "loader":
        return row.candidate.width > 0 and row.candidate.options.get("name") != "memory"
    return row.candidate.kind == "decoding"


def _mean(row: LoadingRow) -> float:
    return row.throughput.mean if row.throughput else 0.0
