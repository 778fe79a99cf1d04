"""Plots over workers: speed-up and parallel efficiency, each with its ideal line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raysuite.records import Ratio, Row
from raysuite.report import text
from raysuite.report.plot import NEUTRAL, Look, Plot, Trace, key, safe

Figure = Callable[[Row], Ratio | None]


def speed_up(rows: Sequence[Row], look: Look) -> Plot | None:
    """Speed-up over workers."""
    ideal = {row.workers: row.workers / _base_workers(row, rows) for row in rows if row.speed_up}
    return _over_workers(
        rows,
        look,
        lambda row: row.speed_up,
        ideal,
        name="speed-up",
        title="Speed-up",
        axis="speed-up S",
        note="S = throughput / throughput of the baseline.",
    )


def efficiency(rows: Sequence[Row], look: Look) -> Plot | None:
    """Parallel efficiency over workers."""
    ideal = {row.workers: 1.0 for row in rows if row.efficiency}
    return _over_workers(
        rows,
        look,
        lambda row: row.efficiency,
        ideal,
        name="efficiency",
        title="Parallel efficiency",
        axis="parallel efficiency E",
        note="E = S × workers of the baseline / workers; 1 is ideal.",
    )


def _base_workers(row: Row, rows: Sequence[Row]) -> int:
    return next(base.workers for base in rows if base.name == row.baseline)


def _over_workers(
    rows: Sequence[Row],
    look: Look,
    figure: Figure,
    ideal: dict[int, float],
    *,
    name: str,
    title: str,
    axis: str,
    note: str,
) -> Plot | None:
    """One line per series; None unless some series was run with several numbers of workers."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        if figure(row):
            series.setdefault(row.series, []).append(row)
    if all(len(members) < 2 for members in series.values()):
        return None
    counts = sorted(ideal)
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "ideal",
            "x": counts,
            "y": [ideal[workers] for workers in counts],
            "line": {"color": NEUTRAL, "dash": "dot", "width": 1.5},
            "hoverinfo": "skip",
        }
    ]
    for label, members in series.items():
        members.sort(key=lambda row: row.workers)
        traces.append(_line(label, members, figure, look))
    bases = sorted({str(row.baseline) for row in rows if figure(row)})
    named = f"Baseline: {bases[0]}." if len(bases) == 1 else "Baselines are named below the plots."
    last = [members[-1] for members in series.values()]
    best = max(last, key=lambda row: _value(figure(row)))
    return Plot(
        name=name,
        title=title,
        note=f"{note} {named}",
        description=f"Lines over the number of workers; the highest at its largest number is "
        f"{_value(figure(best)):.2f} ({best.name}).",
        traces=traces,
        layout={
            "xaxis": _workers_axis(counts),
            "yaxis": {"title": {"text": axis}, "rangemode": "tozero"},
            "height": 420,
        },
    )


def _line(label: str, rows: Sequence[Row], figure: Figure, look: Look) -> Trace:
    ratios = [figure(row) for row in rows]
    above = [r.high - r.value if r and r.high is not None else 0.0 for r in ratios]
    below = [r.value - r.low if r and r.low is not None else 0.0 for r in ratios]
    return {
        "type": "scatter",
        "name": safe(label),
        "x": [row.workers for row in rows],
        "y": [_value(ratio) for ratio in ratios],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "visible": any(above),
            "thickness": 1.2,
            "width": 4,
        },
        "customdata": [
            [safe(row.name), text.ratio(ratio), safe(str(row.baseline))]
            for row, ratio in zip(rows, ratios, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} against %{customdata[2]}"
        "<extra></extra>",
        "meta": {"keys": [key(row) for row in rows], "points": True},
        **look.series_line(rows[0]),
    }


def _workers_axis(counts: Sequence[int]) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": "workers"},
        "tickvals": list(counts),
        "ticktext": [str(workers) for workers in counts],
    }
    # numbers of workers are doubled as a rule: on a linear axis the small ones would crowd
    return {**axis, "type": "log"} if counts[-1] >= 8 * counts[0] else axis


def _value(ratio: Ratio | None) -> float:
    return ratio.value if ratio else 0.0
