"""Bars per data set and network (Jansen et al. 2020, Mahon et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records import Row, Stat
from raysuite.records.names import workers_name
from raysuite.report import text
from raysuite.report.facets import WORK, facets, shared, telling, written
from raysuite.report.figures.panels import panelled
from raysuite.report.figures.points import Figure, bar, middle
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import Plot, Trace
from raysuite.units import GIB, MIB

MOST_BARS = 12
"""Bars of one group; where there would be more, only the largest number of workers is drawn."""


def several(rows: Sequence[Row]) -> bool:
    """Whether the rows train more than one network, or on more than one data set."""
    return len({tuple(facets(row)[name] for name in WORK) for row in rows}) > 1


def speed_up(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Speed-up per data set and network, baselines left out."""
    shown = [row for row in rows if row.speed_up and not row.is_baseline]
    return _bars(
        shown,
        styles,
        lambda row: row.speed_up,
        name="speed-up-works",
        title="Speed-up per data set and network",
        axis="speed-up S",
        note="Against each network's own baseline, which the section Baselines names.",
        write=text.number,
    )


def epoch_time(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Seconds per epoch, per data set and network."""
    return _bars(
        rows,
        styles,
        lambda row: row.epoch_seconds,
        name="epoch-time",
        title="Epoch time per data set and network",
        axis="seconds per epoch",
        note="Training alone, on the slowest worker; epochs with warm-up steps only where there "
        "are no others.",
        write=text.seconds,
        same_y=False,  # an epoch of ImageNet is a thousand of MNIST's
    )


def memory(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Peak memory per data set and network: of the device, on a CPU of the process."""
    on_device = any(row.peak_device_bytes for row in rows)

    def figure(row: Row) -> Stat | None:
        return row.peak_device_bytes if on_device else row.peak_process_bytes

    peaks = [value.mean for row in rows if (value := figure(row))]
    unit, divisor = ("GiB", GIB) if max(peaks, default=0) >= GIB else ("MiB", MIB)
    return _bars(
        rows,
        styles,
        figure,
        name="memory",
        title="Memory per data set and network",
        axis=f"peak {'device' if on_device else 'process'} memory, {unit}",
        note="Largest memory of the worker that had most.",
        write=text.size,
        scale=1 / divisor,
    )


def _bars(
    rows: Sequence[Row],
    styles: Styles,
    figure: Figure,
    *,
    name: str,
    title: str,
    axis: str,
    note: str,
    write: text.Writer,
    scale: float = 1.0,
    same_y: bool = True,
) -> Plot | None:
    """Panels of data sets, in each a group of bars per network; None for a single work."""
    shown = [row for row in rows if figure(row)]
    if not several(shown):
        return None
    models = list(dict.fromkeys(facets(row)["model"] for row in shown))
    sets = list(dict.fromkeys(facets(row)["data"] for row in shown))
    category, panel = ("model", "data") if len(models) > 1 else ("data", "model")
    order = models if category == "model" else sets
    names, legend = _legend(shown)
    if len(legend) > MOST_BARS:
        most = max(row.workers for row in shown)
        shown = [row for row in shown if row.workers == most]
        names, legend = _legend(shown)
        title += f", {workers_name(most)}"
    panels: dict[str, list[Trace]] = {}
    for heading in dict.fromkeys(facets(row)[panel] for row in shown):
        inside = [row for row in shown if facets(row)[panel] == heading]
        panels[heading] = []
        for label in legend:
            mine = [row for row in inside if written(row, names) == label]
            if mine:
                color = styles.shade(mine[0], names, legend)
                called = label or shared(mine, ("strategy", "loader"))
                panels[heading].append(
                    bar(
                        mine, called, lambda row: facets(row)[category], figure, write, color, scale
                    )
                )
    least, best = (pick(shown, key=lambda row: middle(figure(row))) for pick in (min, max))
    return panelled(
        name=name,
        title=title,
        note=note,
        description=f"Bars from {write(middle(figure(least)))} ({least.name}) to "
        f"{write(middle(figure(best)))} ({best.name}).",
        panels=panels,
        columns=2,
        x={"type": "category", "categoryorder": "array", "categoryarray": order},
        y={"title": {"text": axis}, "rangemode": "tozero"},
        same_y=same_y,
        extra={"barmode": "group", "bargap": 0.25},
    )


def _legend(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The facets that tell apart the bars of one group, and what they come to."""
    names = telling(rows, lambda row: tuple(facets(row)[each] for each in WORK))
    return names, list(dict.fromkeys(written(row, names) for row in rows))
