"""Loaders' speeds as bars, one colour per number of threads."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records.loading import LoadingRow
from raysuite.report import text
from raysuite.report.bars import SHADES
from raysuite.report.plot import NEUTRAL, Plot, Trace, error_bar, folded, safe

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
    traces: list[Trace] = []
    for width in widths:
        mine = [row for row in shown if row.candidate.width == width]
        place = [each for each in widths if each].index(width) if width else 0
        color = SHADES[place % len(SHADES)] if width else NEUTRAL
        traces.append(_bars(mine, f"{width} at work" if width else "nothing loaded", color))
    far = [
        f"{row.candidate.name} {text.stat(row.throughput, single='')}"
        for row in measured
        if row not in shown
    ]
    note = "Bars are means over rounds; whiskers are 95 % intervals."
    if far:
        note += f" Too far to be drawn, images/s: {text.listed(far, most=8)}."
    best = max(shown, key=_mean)
    groups = list(dict.fromkeys(folded(row.candidate.series) for row in shown))
    return Plot(
        name="loaders",
        title="Images per second",
        note=note,
        description=f"Bars per loader and number of threads; the longest is {best.candidate.name} "
        f"with {text.number(_mean(best))} images/s.",
        traces=traces,
        layout={
            "barmode": "group",
            "bargap": 0.25,
            "xaxis": {"title": {"text": "images per second"}, "rangemode": "tozero"},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": groups,
                "autorange": "reversed",
                "automargin": True,
            },
            "legend": {"traceorder": "normal"},
            "height": 130 + max(16 * len(shown) + 8 * len(groups), 90),
        },
    )


def _bars(rows: Sequence[LoadingRow], label: str, color: str) -> Trace:
    stats = [row.throughput for row in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "y": [folded(row.candidate.series) for row in rows],
        "x": [_mean(row) for row in rows],
        "error_x": error_bar(stats),
        "marker": {"color": color},
        "customdata": [
            [safe(row.candidate.name), text.stat(row.throughput), text.ratio(row.of_decoding)]
            for row in rows
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} images/s<br>"
        "%{customdata[2]} of bare decoding<extra></extra>",
    }


def _drawn_always(row: LoadingRow) -> bool:
    """A loader that reads, or bare decoding: what the plot is for."""
    if row.candidate.kind == "loader":
        return row.candidate.width > 0 and row.candidate.options.get("name") != "memory"
    return row.candidate.kind == "decoding"


def _mean(row: LoadingRow) -> float:
    return row.throughput.mean if row.throughput else 0.0
