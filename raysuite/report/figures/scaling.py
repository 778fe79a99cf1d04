"""Figures over workers: throughput, speed-up and parallel efficiency, in panels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from typing import Any

from raysuite.records import Ratio, Row
from raysuite.records.names import workers_name
from raysuite.report import text
from raysuite.report.facets import WORK, shared, telling, written
from raysuite.report.figures.panels import columns_of, headings, panelled
from raysuite.report.figures.points import Figure, line, means, middle
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import NEUTRAL, Plot, Trace

_DASHES = ("dot", "dash", "dashdot")
"""Of ideal lines from different numbers of workers."""


def throughput(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Throughput over workers, one panel a loader and work (Aach et al. 2023, Fig. 3)."""
    return _over_workers(
        rows,
        styles,
        lambda row: row.throughput,
        panel=("loader", *WORK),
        name="throughput-workers",
        title="Throughput over workers",
        axis="images per second",
        note=f"Warm-up is left out. Points are {means(row.throughput for row in rows)}.",
        write=lambda value: f"{text.number(value)} images/s",
    )


def speed_up(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Speed-up over workers with its ideal line (Aach et al. 2023, Fig. 4)."""
    shown = [row for row in rows if row.speed_up]
    bases = {row.name: row.workers for row in rows}
    several = len({bases[str(row.baseline)] for row in shown}) > 1

    def ideal(inside: Sequence[Row]) -> list[Trace]:
        found: dict[int, set[int]] = {}
        for row in inside:
            found.setdefault(bases[str(row.baseline)], set()).add(row.workers)
        return [
            _ideal(
                f"ideal from {workers_name(base)}" if several else "ideal",
                {workers: workers / base for workers in sorted(counts)},
                dash,
            )
            for (base, counts), dash in zip(sorted(found.items()), cycle(_DASHES))
        ]

    return _over_workers(
        shown,
        styles,
        lambda row: row.speed_up,
        panel=WORK,
        ideal=ideal,
        name="speed-up",
        title="Speed-up",
        axis="speed-up S",
        note=f"S = throughput / throughput of the baseline. {_baselines(shown)}",
    )


def efficiency(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Parallel efficiency, one line per framework and loader (Aach et al. 2023, Figs. 5 and 7)."""
    shown = [row for row in rows if row.efficiency]
    return _over_workers(
        shown,
        styles,
        lambda row: row.efficiency,
        panel=WORK,
        ideal=_ideal_efficiency,
        name="efficiency",
        title="Parallel efficiency",
        axis="parallel efficiency E",
        note="E = S × workers of the baseline / workers; 1 is ideal. " + _baselines(shown),
    )


def efficiency_per_model(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Parallel efficiency, one line per network (Aach et al. 2023, Fig. 6)."""
    shown = [row for row in rows if row.efficiency]
    names = telling(shown, lambda row: row.workers, WORK)
    if "model" not in names:
        return None
    return _over_workers(
        shown,
        styles,
        lambda row: row.efficiency,
        panel=[name for name in names if name != "model"],
        ideal=_ideal_efficiency,
        name="efficiency-models",
        title="Parallel efficiency per network",
        axis="parallel efficiency E",
        note="One line per network. " + _baselines(shown),
    )


def _baselines(rows: Sequence[Row]) -> str:
    named = sorted({str(row.baseline) for row in rows})
    return f"Baseline: {named[0]}." if len(named) == 1 else "Baselines are named below the plots."


def _over_workers(
    rows: Sequence[Row],
    styles: Styles,
    figure: Figure,
    *,
    panel: Collection[str],
    name: str,
    title: str,
    axis: str,
    note: str,
    ideal: Callable[[Sequence[Row]], list[Trace]] | None = None,
    write: text.Writer = text.number,
) -> Plot | None:
    """None unless some line has several numbers of workers; shorter lines are left to the bars."""
    shown = [row for row in rows if figure(row)]
    names = telling(shown, lambda row: row.workers, WORK)
    series: dict[tuple[str, str | None], list[Row]] = {}
    for row in shown:
        # ratios to different baselines make no line
        base = row.baseline if isinstance(figure(row), Ratio) else None
        series.setdefault((written(row, names), base), []).append(row)
    if all(len(members) < 2 for members in series.values()):
        return None
    # a column of panels is one loader
    across = sorted((each for each in names if each in panel), key=lambda each: each == "loader")
    within = [each for each in names if each not in panel]
    panels: dict[str, list[Trace]] = {}
    for heading in headings(shown, across):
        panels[heading] = []
        inside = [m for m in series.values() if written(m[0], across) == heading]
        if ideal:
            panels[heading] += ideal([row for members in inside for row in members])
        labels = [written(m[0], within) or shared(m, ("strategy", "loader")) for m in inside]
        for members, label in zip(inside, labels, strict=True):
            if labels.count(label) > 1:
                label += f" against {members[0].baseline}"
            style = styles.line(members[0], within)
            panels[heading].append(
                line(members, label, lambda row: row.workers, figure, write, style)
            )
    counts = sorted({row.workers for row in shown})
    best = max(shown, key=lambda row: middle(figure(row)))
    both = shared(shown, [each for each in ("strategy", "loader", *WORK) if each not in names])
    return panelled(
        name=name,
        title=f"{title} – {both}" if both else title,
        note=note,
        description="Lines over the number of workers; the highest point is "
        f"{write(middle(figure(best)))} ({best.name}).",
        panels=panels,
        columns=columns_of(shown, across),
        x=_workers_axis(counts),
        y={"title": {"text": axis}, "rangemode": "tozero"},
    )


def _ideal_efficiency(rows: Sequence[Row]) -> list[Trace]:
    return [_ideal("ideal", dict.fromkeys(sorted({row.workers for row in rows}), 1.0))]


def _ideal(name: str, values: dict[int, float], dash: str = "dot") -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(values),
        "y": list(values.values()),
        "line": {"color": NEUTRAL, "dash": dash, "width": 1.5},
        "hoverinfo": "skip",
    }


def _workers_axis(counts: Sequence[int]) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": "workers"},
        "tickvals": list(counts),
        "ticktext": [str(workers) for workers in counts],
    }
    # numbers of workers are doubled as a rule: on a linear axis the small ones would crowd
    return {**axis, "type": "log"} if counts[-1] >= 8 * counts[0] else axis
