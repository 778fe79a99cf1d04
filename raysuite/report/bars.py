"""Plots with one bar per variant: throughput, epoch time, memory, waiting for data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raysuite.records import Row, Stat
from raysuite.records.names import workers_name
from raysuite.report import text
from raysuite.report.facets import telling, written
from raysuite.report.figures.points import means
from raysuite.report.plot import Plot, Trace, error_bar, folded, key, safe
from raysuite.units import GIB, MIB

# A row of hues in which more workers are deeper, each legible on white and on near-black.
SHADES = ("#6FBFB8", "#479FC4", "#3D7CC2", "#5C63C4", "#8150B8", "#A2459B", "#B53F72", "#B04A4A")

MANY_BARS = 60

Figure = Callable[[Row], Stat | None]


def throughput(rows: Sequence[Row]) -> Plot | None:
    """Images per second over all workers."""
    return _by_workers(
        rows,
        lambda row: row.throughput,
        name="throughput",
        title="Throughput",
        axis="images per second over all workers",
        note=f"Warm-up is left out. Bars are {means(row.throughput for row in rows)}.",
        write=lambda value: f"{text.number(value)} images/s",
    )


def epoch_time(rows: Sequence[Row]) -> Plot | None:
    """Training seconds of an epoch."""
    return _by_workers(
        rows,
        lambda row: row.epoch_seconds,
        name="epoch-time",
        title="Epoch time",
        axis="seconds of training per epoch, on the slowest worker",
        note="Without validation, and without epochs with warm-up steps where there are others.",
        write=text.seconds,
    )


def data_wait(rows: Sequence[Row]) -> Plot | None:
    """Share of an epoch in which a worker waits for its loader."""
    return _by_workers(
        rows,
        lambda row: row.data_wait_share,
        name="data-wait",
        title="Waiting for data",
        axis="share of the epoch's time, mean over workers",
        note="A large share says that the loader, not the strategy, sets the pace.",
        write=text.percent,
        extra={"tickformat": "~%"},
    )


def memory(rows: Sequence[Row]) -> Plot | None:
    """Peak memory of process and device, of the worker that had most."""
    figures: list[tuple[str, Figure, str]] = [
        ("process (resident)", lambda row: row.peak_process_bytes, SHADES[2]),
        ("grown during the run", lambda row: row.grown_process_bytes, SHADES[0]),
        ("device", lambda row: row.peak_device_bytes, SHADES[5]),
    ]
    peaks = [s.best for _, figure, _ in figures for row in rows if (s := figure(row))]
    if not peaks:
        return None
    names = telling(rows)
    unit, divisor = ("GiB", GIB) if max(peaks) >= GIB else ("MiB", MIB)
    traces = []
    for label, figure, color in figures:
        shown = [row for row in rows if figure(row)]
        if shown:
            trace = _bars(shown, names, figure, label, color, text.size, 1 / divisor)
            traces.append(
                {**trace, "y": [folded(written(row, names) or row.name) for row in shown]}
            )
    return Plot(
        name="memory",
        title="Memory",
        note="Largest memory of the worker that had most. A process that ran earlier runs still "
        "holds their libraries: the growth is what this run itself took.",
        description=f"Bars of peak memory per variant, in {unit}.",
        traces=traces,
        layout=_layout(
            f"peak memory of one worker, {unit}",
            len(rows) * len(traces),
            [written(row, names) or row.name for row in rows],
        ),
    )


def _by_workers(
    rows: Sequence[Row],
    figure: Figure,
    *,
    name: str,
    title: str,
    axis: str,
    note: str,
    write: text.Writer,
    extra: dict[str, Any] | None = None,
) -> Plot | None:
    """Bars grouped by series, one colour per number of workers; None where nothing was measured."""
    shown = [row for row in rows if figure(row)]
    if not shown:
        return None
    traces = []
    names = telling(rows, lambda row: row.workers)
    counts = sorted({row.workers for row in rows})
    for place, workers in enumerate(counts):
        mine = [row for row in shown if row.workers == workers]
        if mine:
            color = SHADES[place % len(SHADES)]
            traces.append(_bars(mine, names, figure, workers_name(workers), color, write))
    layout = _layout(axis, len(shown), [written(row, names) or row.series for row in shown])
    layout["xaxis"] |= extra or {}
    best = max(shown, key=lambda row: _mean(figure(row)))
    least = min(shown, key=lambda row: _mean(figure(row)))
    return Plot(
        name=name,
        title=title,
        note=note,
        description=f"Bars per variant, from {write(_mean(figure(least)))} ({least.name}) to "
        f"{write(_mean(figure(best)))} ({best.name}).",
        traces=traces,
        layout=layout,
    )


def _bars(
    rows: Sequence[Row],
    names: Sequence[str],
    figure: Figure,
    label: str,
    color: str,
    write: text.Writer,
    scale: float = 1.0,
) -> Trace:
    stats = [figure(row) for row in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "y": [folded(written(row, names) or row.series) for row in rows],
        "x": [_mean(stat) * scale for stat in stats],
        "error_x": error_bar(stats, scale),
        "marker": {"color": color},
        "customdata": [
            [safe(row.name), text.stat(stat, write)] for row, stat in zip(rows, stats, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        "meta": {"keys": [key(row) for row in rows], "points": True},
    }


def _layout(axis: str, bars: int, names: Sequence[str]) -> dict[str, Any]:
    groups = list(dict.fromkeys(folded(name) for name in names))
    thickness = 16 if bars <= MANY_BARS else 9
    return {
        "barmode": "group",
        "bargap": 0.25,
        "xaxis": {"title": {"text": axis}, "rangemode": "tozero"},
        # first variant on top, as in the table
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": groups,
            "autorange": "reversed",
            "automargin": True,
        },
        "legend": {"traceorder": "normal"},
        "height": 130 + max(thickness * bars + 8 * len(groups), 90),
    }


def _mean(stat: Stat | None) -> float:
    return stat.mean if stat else 0.0
