"""The plots of a suite's report: a function each, in `PLOTS`, None where there is nothing to draw.

To add a plot: a function of `Drawing`, and a line in `PLOTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from raysuite.records import EpochFinished, Ratio, Row, RunFigures, Stat
from raysuite.records.costs import PROJECTED_EPOCHS
from raysuite.records.metrics import Metric
from raysuite.records.names import script_name, work_key, workers_name
from raysuite.records.statistics import accuracy as accuracy_of
from raysuite.records.statistics import summarize
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.against import Comparison
from raysuite.report.classes import confusion
from raysuite.report.facets import WORK, Styles, facets, shared, telling, written
from raysuite.report.plot import Plot, Style, Trace
from raysuite.report.tables import goal, metric_named, primary
from raysuite.spec.tasks import CLASSIFICATION, MetricFacts, TaskFacts

Value = Stat | Ratio
Figure = Callable[[Row], Value | None]


@dataclass(frozen=True)
class Drawing:
    """The data that plots are drawn from."""

    rows: Sequence[Row]
    comparison: Comparison | None = None
    """Its published values are markers in the plots of their quantities."""

    @property
    def task(self) -> TaskFacts:
        """The declarations of the rows' task."""
        return self.rows[0].task if self.rows else CLASSIFICATION

    @property
    def primary(self) -> Metric:
        """The primary metric after the last epoch."""
        return primary(self.rows)

    @property
    def main(self) -> MetricFacts:
        """What the task declares of it."""
        return self.task.main

    @property
    def rate(self) -> str:
        """`images per second`."""
        return f"{self.task.unit} per second"

    @cached_property
    def scaling(self) -> Plot | None:
        """Throughput over workers, one panel a loader and work (Aach et al. 2023, Fig. 3)."""
        shown, how = self._throughput
        return lines_over(self, shown, panel=("loader", *WORK), quantity="throughput", **how)

    @property
    def throughputs(self) -> Plot | None:
        """A bar for each variant, where no series has several numbers of workers."""
        shown, how = self._throughput
        return None if self.scaling else bars(self, shown, by_work=False, **how)

    @property
    def _throughput(self) -> tuple[Shown, dict[str, Any]]:
        note = f"Warm-up is left out; {interval_note(row.throughput for row in self.rows)}."
        how = {"name": "throughput", "title": "Throughput", "note": note}
        return shown_metric(self.rows, ["throughput"], self.rate), how

    @cached_property
    def styles(self) -> Styles:
        """The styles of facets, which are the same in all plots."""
        return Styles(self.rows)


def make_plots(rows: Sequence[Row], comparison: Comparison | None = None) -> list[Plot]:
    """The plots for which there is anything to draw, in the order of the page."""
    drawing = Drawing(rows, comparison)
    return [plot for draw in PLOTS if (plot := draw(drawing)) is not None]


# Values of rows.


@dataclass(frozen=True)
class Shown:
    """A figure of rows, and the one unit in which a plot shows it."""

    figure: Figure
    write: text.Writer = text.number
    scale: float = 1.0
    """From the figure's unit to that of the axis."""
    axis: dict[str, Any] = field(default_factory=dict)

    def tip(self, row: Row) -> str:
        """The tooltip of a row."""
        value = self.figure(row)
        if isinstance(value, Stat):
            return f"{row.name}\n{text.stat(value, self.write)}"
        return f"{row.name}\n{text.ratio(value)} against {row.baseline}"

    def best(self, rows: Sequence[Row], pick: Callable[..., tuple[float, str]] = max) -> str:
        """`1.87 s (ddp · 2 workers)`: the largest value, or with `min` the smallest."""
        found = [(figure.value, row.name) for row in rows if (figure := self.figure(row))]
        value, name = pick(found, key=itemgetter(0))
        return f"{self.write(value)} ({name})"


def shown_metric(rows: Sequence[Row], names: Sequence[str], title: str) -> Shown:
    """The first of these metrics that any row has, in the unit that suits all rows."""
    has = [name for name in names if any(row.figures.get(name) for row in rows)]
    metric = metric_named((has or list(names))[0], rows)

    def figure(row: Row) -> Stat | None:
        return row.figures.get(metric.name)

    write = text.writer(metric.unit, [stat.mean for row in rows if (stat := figure(row))])
    if isinstance(write, text.Multiple):
        return Shown(figure, write, 1 / write.size, p.quantity(f"{title}, {write.name}"))
    if metric.unit == "share":
        return Shown(figure, write, axis=p.quantity(title, format="~%"))
    return Shown(figure, lambda value: f"{text.number(value)} {metric.unit}", 1, p.quantity(title))


def interval_note(values: Iterable[Value | None]) -> str:
    """What points represent; intervals are mentioned only where some are drawn."""
    drawn = any(value and value.low is not None for value in values)
    return "means over repeats" + (" with 95 % intervals" if drawn else "")


def traces_of(
    rows: Sequence[Row],
    shown: Shown,
    x: Callable[[Row], Any],
    panel: str = "",
    series: str = "",
) -> list[Trace]:
    """Means of rows with the ends of their intervals; and each repeat, where there are several."""
    scale = shown.scale
    means, repeats = [], []
    for row in rows:
        value = shown.figure(row)
        place = {"x": x(row), "key": row.name}
        ends = {end: value and _end(getattr(value, end), scale) for end in ("low", "high")}
        means.append(
            {**place, "y": value.value * scale if value else 0.0, **ends, "tip": shown.tip(row)}
        )
        if isinstance(value, Stat) and value.n > 1:
            for each in value.values:
                tip = f"{row.name}\none repeat: {shown.write(each)}"
                repeats.append({**place, "y": each * scale, "tip": tip})
    found = [("mean", means), ("repeat", repeats)]
    return [p.trace(kind, each, panel=panel, series=series) for kind, each in found if each]


def _dots_note(traces: Sequence[Trace]) -> str:
    return " Dots are single repeats." if any(each["kind"] == "repeat" for each in traces) else ""


def _end(value: float | None, scale: float) -> float | None:
    """None where an interval has no end to draw."""
    return None if value is None or not math.isfinite(value) else max(0.0, value) * scale


def headings(rows: Sequence[Row], across: Sequence[str]) -> list[str]:
    """Panel titles, ordered so that the last facet varies fastest."""
    places = {name: list(dict.fromkeys(written(row, [name]) for row in rows)) for name in across}
    ordered = sorted(
        rows, key=lambda row: [places[name].index(written(row, [name])) for name in across]
    )
    return list(dict.fromkeys(written(row, across) for row in ordered))


def columns_of(rows: Sequence[Row], across: Sequence[str]) -> int:
    """Number of panels beside each other: one for each value of the facet that varies fastest,
    where these are two to four."""
    values = len({written(row, across[-1:]) for row in rows})
    if len(across) > 1 and 2 <= values <= 4:
        return values
    return 2 if values == 4 else 3


def titled(title: str, said: str) -> str:
    """A title with the values that all variants share."""
    return f"{title} – {said}" if said else title


# Lines over the number of workers, or another number.


@dataclass(frozen=True)
class Over:
    """What lines go over."""

    title: str
    value: Callable[[Row], int]
    shared: Sequence[str] = ("strategy", "loader")
    """What a line is called by, where nothing tells it from others."""
    log: bool | None = None
    """Whether the axis is logarithmic; None: where the small numbers would crowd."""


WORKERS = Over("workers", lambda row: row.workers)
BATCHES = Over("global batch", lambda row: row.global_batch, ("schedule",), log=True)


def lines_over(
    drawing: Drawing,
    shown: Shown,
    over: Over = WORKERS,
    *,
    name: str,
    title: str,
    note: str,
    panel: Collection[str] = WORK,
    quantity: str = "",
    ideal: Callable[[Sequence[Row]], list[Trace]] | None = None,
    log: bool = False,
) -> Plot | None:
    """A line for each series, in a panel for each value of the facets `panel`.

    None unless some series has several numbers. `quantity` is what papers' values are called by
    that belong into it.
    """
    rows = [row for row in drawing.rows if shown.figure(row)]
    names = telling(rows, over.value, WORK)
    series: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        # ratios to different baselines make no line
        base = row.baseline if isinstance(shown.figure(row), Ratio) else None
        series.setdefault((written(row, names), base), []).append(row)
    if all(len(members) < 2 for members in series.values()):
        return None
    # a column of panels is one loader
    across = sorted((each for each in names if each in panel), key=lambda each: each == "loader")
    within = [each for each in names if each not in panel]
    panels = headings(rows, across)
    styles: dict[str, Style] = {}
    traces: list[Trace] = []
    for heading in panels:
        inside = [m for m in series.values() if written(m[0], across) == heading]
        if ideal:
            everyone = [row for members in inside for row in members]
            traces += [{**each, "panel": heading} for each in ideal(everyone)]
        labels = [written(m[0], within) or shared(m, over.shared) for m in inside]
        for members, label in zip(inside, labels, strict=True):
            if labels.count(label) > 1:
                label += f" against {members[0].baseline}"
            styles.setdefault(label, drawing.styles.of(members[0], within))
            ordered = sorted(members, key=over.value)
            traces += traces_of(ordered, shown, over.value, heading, label)
    marks = published_marks(drawing, quantity, rows, across, shown.scale, over.value)
    traces += [mark for mark in marks if mark["panel"] in panels]
    both = shared(rows, [each for each in (*over.shared, *WORK) if each not in names])
    return Plot(
        name=name,
        title=titled(title, both),
        note=note + _dots_note(traces) + (" Open diamonds are a paper's values." if marks else ""),
        description=f"Lines over {over.title}; the highest point is {shown.best(rows)}.",
        traces=traces,
        layers=[
            *(p.level(), p.intervals(len(styles)), p.line()),
            *(p.dots(), p.markers(), p.published()),
        ],
        x=p.counts(over.title, sorted({over.value(row) for row in rows}), over.log),
        y=shown.axis | ({"scale": {"type": "log", "nice": True}} if log else {}),
        styles=styles,
        panels=panels,
        columns=columns_of(rows, across),
        wide=len(panels) > 1,
    )


def published_marks(
    drawing: Drawing,
    quantity: str,
    rows: Sequence[Row],
    across: Sequence[str],
    scale: float,
    x: Callable[[Row], int],
) -> list[Trace]:
    """A paper's values of a quantity, each in the panel and at the position of its row."""
    compared = drawing.comparison
    if not quantity or compared is None or not compared.published:
        return []
    named = {row.name: row for row in rows}
    marks: dict[tuple[str, int, float], Trace] = {}
    for line in compared.lines:
        row = named.get(line.ours_name)
        if line.quantity == quantity and row is not None:
            place = (written(row, across), x(row), line.theirs.value * scale)
            value = f"{line.bound} {text.number(line.theirs.value)}".strip()
            tip = f"{compared.title}\n{line.theirs_name}: {value} ({line.source})"
            point = {"x": place[1], "y": place[2]}
            marks[place] = p.trace("published", [point], panel=place[0], tip=tip)
    return list(marks.values())


def level_trace(values: Mapping[float, float], name: str = "ideal") -> Trace:
    """A reference line."""
    return p.trace("level", [{"x": x, "y": y} for x, y in values.items()], series=name)


def training_time(drawing: Drawing) -> Plot | None:
    """Projected run time over workers, as the papers state it (Aach et al. 2023)."""
    rows = [row for row in drawing.rows if row.all_epochs_seconds]
    epochs = {int(row.runs[0].plan["spec"]["training"]["epochs"]) for row in rows}
    workers = {row.workers for row in rows}
    number = str(epochs.pop()) if len(epochs) == 1 else "all"
    return lines_over(
        drawing,
        shown_metric(rows, ["all_epochs_seconds"], "training time"),
        panel=("loader", *WORK),
        quantity="training_s" if number == str(PROJECTED_EPOCHS) else "",
        name="training-time",
        title=f"Time of {number} epochs",
        note="A projection: the spec's epochs times the mean training time of an epoch, without "
        "validation. Both axes are logarithmic where workers are many.",
        log=p.crowded(sorted(workers)),
    )


def speed_up(drawing: Drawing) -> Plot | None:
    """Speed-up over workers with its ideal line (Aach et al. 2023, Fig. 4)."""
    shown = [row for row in drawing.rows if row.speed_up]
    bases = {row.name: row.workers for row in drawing.rows}
    several = len({bases[str(row.baseline)] for row in shown}) > 1

    def ideal(inside: Sequence[Row]) -> list[Trace]:
        found: dict[int, set[int]] = {}
        for row in inside:
            found.setdefault(bases[str(row.baseline)], set()).add(row.workers)
        return [
            level_trace(
                {workers: workers / base for workers in sorted(counts)},
                f"ideal from {workers_name(base)}" if several else "ideal",
            )
            for base, counts in sorted(found.items())
        ]

    return lines_over(
        drawing,
        Shown(lambda row: row.speed_up, axis=p.quantity("speed-up S")),
        ideal=ideal,
        quantity="speed_up",
        name="speed-up",
        title="Speed-up",
        note="S = throughput / throughput of the baseline; dotted is ideal. " + _baselines(shown),
    )


def _efficiency(
    drawing: Drawing, name: str, title: str, note: str, panel: Collection[str]
) -> Plot | None:
    def ideal(inside: Sequence[Row]) -> list[Trace]:
        return [level_trace(dict.fromkeys(sorted({row.workers for row in inside}), 1.0))]

    return lines_over(
        drawing,
        Shown(lambda row: row.efficiency, axis=p.quantity("parallel efficiency E")),
        panel=panel,
        ideal=ideal,
        quantity="efficiency",
        name=name,
        title=title,
        note=f"{note} {_baselines([row for row in drawing.rows if row.efficiency])}",
    )


def efficiency(drawing: Drawing) -> Plot | None:
    """Parallel efficiency, one line per framework and loader (Aach et al. 2023, Figs. 5 and 7)."""
    note = "E = S × workers of the baseline / workers; dotted is ideal."
    return _efficiency(drawing, "efficiency", "Parallel efficiency", note, WORK)


def efficiency_models(drawing: Drawing) -> Plot | None:
    """Parallel efficiency, one line per network (Aach et al. 2023, Fig. 6)."""
    shown = [row for row in drawing.rows if row.efficiency]
    names = telling(shown, lambda row: row.workers, WORK)
    if "model" not in names:
        return None
    panel = [name for name in names if name != "model"]
    title = "Parallel efficiency per network"
    return _efficiency(drawing, "efficiency-models", title, "One line per network.", panel)


def _baselines(rows: Sequence[Row]) -> str:
    named = sorted({str(row.baseline) for row in rows})
    return f"Baseline: {named[0]}." if len(named) == 1 else "Baselines are named below the plots."


def time_to_accuracy(drawing: Drawing) -> Plot | None:
    """Over workers (Mahon et al. 2020), or a bar for each variant; None without a target."""
    found = {r.target for row in drawing.rows for r in row.counted if r.target is not None}
    if not found:
        return None
    write, aim = text.writer(drawing.primary.unit, ()), goal(drawing.rows)
    targets = text.listed([write(each) for each in sorted(found)])
    missed = [row for row in drawing.rows if row.counted and not row.time_to_accuracy]
    note = (
        f"Target: {targets}. Time counts from before the first sample; there is none unless every "
        "repeat met the target. Its resolution is an epoch, as validation comes after each."
    )
    if missed:
        note += f" Not met by {text.listed([row.name for row in missed])}."
    shown = shown_metric(
        drawing.rows, ["time_to_accuracy"], f"time to the target {drawing.primary.title.lower()}"
    )
    how: dict[str, Any] = {"name": f"time-to-{aim}", "title": f"Time to {aim}", "note": note}
    lines = lines_over(drawing, shown, quantity=f"time_to_{aim}_s", **how)
    return lines or bars(drawing, shown, by_work=False, **how)


MOST_COMPARED = 30
"""Rows of one group whose ratios to the best are drawn."""
FARTHEST = 1.5
"""Ratio to the best at which the axis ends: the intervals of two or three repeats reach far."""


_CLOSE, _SLOWER = "best, or not shown to differ from it", "shown to be slower"


def against_best(drawing: Drawing) -> Plot | None:
    """Ratios to the best of the same work on as many workers, the highest first, with the summary's
    intervals; None where no row is compared."""
    compared = [row for row in drawing.rows if row.to_best]
    if not compared:
        return None
    names = telling(compared, always=("workers", *WORK))
    across = [name for name in names if name in ("workers", *WORK)]
    within = [name for name in names if name not in across]
    ordered = sorted(compared, key=lambda row: -(row.to_best.value if row.to_best else 0.0))
    traces: list[Trace] = []
    labels: list[str] = []
    panels = headings(compared, across)
    for heading in panels:
        group = [row for row in ordered if written(row, across) == heading][:MOST_COMPARED]
        points: dict[str, list[dict[str, Any]]] = {}
        for row in group:
            found = row.to_best
            assert found is not None
            slower = found.differs_from_one and not row.is_best
            label = written(row, within) or row.name
            ends = {end: _end(getattr(found, end), 1.0) for end in ("low", "high")}
            if row.is_best:  # over itself it is 1 by definition
                ends = dict.fromkeys(ends)
            elif ends["high"] is None and ends["low"] is not None:
                ends["high"] = 2 * FARTHEST
            tip = f"{row.name}\n{text.ratio(found)} of the best, {text.stat(row.throughput)}"
            point = {"x": found.value, "y": label, "key": row.name, **ends}
            point["tip"] = f"{tip} {row.task.unit}/s"
            points.setdefault(_SLOWER if slower else _CLOSE, []).append(point)
            labels.append(label)
        traces.append(p.trace("level", [{"x": 1.0, "y": labels[-1]}], panel=heading))
        traces += [p.trace("mean", own, panel=heading, series=s) for s, own in points.items()]
    several = any(row.to_best and row.to_best.low is not None for row in compared)
    values = [x for trace in traces for x in (*trace["x"], *trace.get("low", ())) if x is not None]
    end = max([1.02, *(high for trace in traces for high in trace.get("high", ()) if high)])
    cut = len(compared) - len(labels)
    note = "Throughput over the highest of the same work on as many workers"
    note += (
        ", with 95 % intervals that hold together."
        if several
        else ". n = 1: no intervals, and no difference is shown to be more than noise."
    )
    return Plot(
        name="against-best",
        title="Against the best",
        note=note + (f" {text.count(cut, 'slower variant')} left out." if cut else ""),
        description=f"Points from {min(values):.2f} to 1 times the best throughput.",
        traces=traces,
        layers=p.forest(),
        x=p.quantity(
            "throughput / best throughput",
            zero=False,
            scale={"domain": [0.95 * min(values), min(end, FARTHEST)]},
        ),
        y=p.labels(list(dict.fromkeys(labels))),
        styles={
            name: style
            for name, style in ((_CLOSE, Style(p.COLORS[0])), (_SLOWER, Style(p.NEUTRAL)))
            if any(trace.get("series") == name for trace in traces)
        },
        panels=panels,
        columns=2,
        height=p.BAR_PX + 2,
        bars_per_label=1,
        wide=len(panels) > 1,
    )


# Bars.

MOST_BARS = 12
"""Bars of one group; where there would be more, only the largest number of workers is drawn."""


def bars(
    drawing: Drawing,
    shown: Shown,
    *,
    name: str,
    title: str,
    note: str,
    same_y: bool = True,
    by_work: bool = True,
) -> Plot | None:
    """A group of upright bars per data set and network where there are several (Jansen et al. 2020,
    Mahon et al. 2020), else horizontal bars, one per variant; None where nothing was measured.

    `same_y`: whether panels share an axis (an epoch of ImageNet is a thousand of MNIST's)."""
    rows = [row for row in drawing.rows if shown.figure(row)]
    if not rows:
        return None
    several = by_work and len({written(row, WORK) for row in rows}) > 1
    group = (
        ("model", "data") if len({facets(row)["model"] for row in rows}) > 1 else ("data", "model")
    )
    category, panel = group if several else ("", "")
    if several:
        title += " per data set and network"
        names = _within_works(rows)
        if len({written(row, names) for row in rows}) > MOST_BARS:
            most = max(row.workers for row in rows)
            rows = [row for row in rows if row.workers == most]
            names = _within_works(rows)
            title += f", {workers_name(most)}"
        common = shared(rows, ("strategy", "loader"))
        legend = list(dict.fromkeys(written(row, names) or common for row in rows))
        colors = p.COLORS if len(legend) <= len(p.COLORS) else (*p.COLORS, *p.SHADES)
    else:
        names = telling(drawing.rows, lambda row: row.workers)
        legend = [workers_name(count) for count in sorted({row.workers for row in drawing.rows})]
        colors = p.SHADES

    def label(row: Row) -> str:
        return facets(row)[category] if several else written(row, names) or row.series

    def series(row: Row) -> str:
        return written(row, names) or common if several else workers_name(row.workers)

    panels = list(dict.fromkeys(facets(row)[panel] if several else "" for row in rows))
    traces = []
    for heading in panels:
        for entry in legend:
            inside = [row for row in rows if not several or facets(row)[panel] == heading]
            mine = [row for row in inside if series(row) == entry]
            if mine:
                for made in traces_of(mine, shown, label, heading, entry):
                    if made["kind"] == "mean":
                        made["kind"] = "bar"
                    if not several:
                        made["x"], made["y"] = made["y"], made["x"]
                    traces.append(made)
    order = p.labels(list(dict.fromkeys(map(label, rows))), lying=not several)
    return Plot(
        name=name,
        title=title,
        note=note + _dots_note(traces),
        description=f"Bars from {shown.best(rows, min)} to {shown.best(rows)}.",
        traces=traces,
        layers=p.bars(lying=not several),
        x=order if several else shown.axis,
        y=shown.axis if several else order,
        styles={each: Style(colors[n % len(colors)]) for n, each in enumerate(legend)},
        panels=panels,
        columns=2,
        same_y=same_y,
        height=p.PANEL_HEIGHT if several else p.BAR_PX if len(rows) <= 60 else 9,
        bars_per_label=0 if several else len(legend),
        wide=len(panels) > 1 or (not several and len(rows) > 40),
    )


def _within_works(rows: Sequence[Row]) -> list[str]:
    """The facets that distinguish the bars of one group."""
    return telling(rows, lambda row: tuple(facets(row)[each] for each in WORK))


def speed_up_works(drawing: Drawing) -> Plot | None:
    """Speed-up per data set and network, baselines left out."""
    if len({written(row, WORK) for row in drawing.rows if row.speed_up}) < 2:
        return None
    return bars(
        drawing,
        Shown(lambda row: None if row.is_baseline else row.speed_up, axis=p.quantity("speed-up S")),
        name="speed-up-works",
        title="Speed-up",
        note="Against each network's own baseline, which the section Baselines names.",
    )


def bars_of(*metrics: str, axis: str, **how: Any) -> Callable[[Drawing], Plot | None]:
    """Bars of the first of these metrics that any row has."""

    def draw(drawing: Drawing) -> Plot | None:
        title = axis.format(one=drawing.task.one)
        return bars(drawing, shown_metric(drawing.rows, metrics, title), **how)

    return draw


epoch_time = bars_of(
    "epoch_seconds",
    axis="training time per epoch",
    name="epoch-time",
    title="Epoch time",
    note="On the slowest worker, without validation; epochs with warm-up steps only where there "
    "are no others.",
    same_y=False,
)
data_wait = bars_of(
    "data_wait_share",
    axis="share of the epoch's time",
    name="data-wait",
    title="Waiting for data",
    note="Mean over workers. Where the share is large, the loader bounds the throughput, not the "
    "strategy.",
    by_work=False,
)
memory = bars_of(
    "peak_device_bytes",
    "peak_process_bytes",
    axis="peak memory",
    name="memory",
    title="Memory",
    note="Largest memory of the worker that had most: of the device, or on a CPU of the process, "
    "which still holds the libraries of earlier runs.",
)
energy = bars_of(
    "device_joules",
    "host_joules",
    axis="joules per training {one}",
    name="energy",
    title="Energy",
    note="Energy of devices, by NVML, or on a CPU of processors and their memory, by RAPL, over "
    "the training time of epochs.",
    same_y=False,
)
utilisation = bars_of(
    "device_busy",
    axis="share of the training time",
    name="utilisation",
    title="Utilisation of devices",
    note="Part of the training time in which a kernel ran, by NVML, mean over workers.",
)


PARTS = (
    ("computation", "computation", "#0072B2"),
    ("communication_exposed", "exposed communication", "#D55E00"),
    ("data_exposed", "exposed loading", "#009E73"),
    ("other", "other", p.NEUTRAL),
)


def shares(drawing: Drawing) -> Plot | None:
    """Where the time of profiled steps went (Aach et al. 2023, Table 2); None without a profile."""
    shown = sorted(
        (row for row in drawing.rows if row.share_computation), key=lambda row: row.workers
    )
    if not shown:
        return None
    names = telling(shown, lambda row: row.workers, WORK)
    panels = headings(shown, names)
    traces = []
    for heading in panels:
        rows = [row for row in shown if written(row, names) == heading]
        for order, (part, name, _) in enumerate(PARTS):
            of = shown_metric(rows, [f"share_{part}"], "")
            tips = [f"{of.tip(row)} {name}" for row in rows]
            if part == "communication_exposed":
                whole = (text.stat(row.share_communication, text.percent) for row in rows)
                tips = [f"{tip} (in all {all_of})" for tip, all_of in zip(tips, whole, strict=True)]
            made = traces_of(rows, of, lambda row: str(row.workers), heading, name)[0]
            traces.append(made | {"kind": "bar", "order": order, "tip": tips})
    return Plot(
        name="shares",
        title=titled("Time shares", shared(shown, ("strategy", "loader", "model", "data"))),
        note="Of the profiled steps, mean over workers and repeats. Exposed is what no computation "
        "hides; all communication is shown on hover.",
        description="Stacked bars of computation, exposed communication, exposed loading and the "
        "rest, which add up to 100 %.",
        traces=traces,
        layers=p.bars(lying=False, offset=False, stacked=True),
        x=p.labels(
            [str(each) for each in sorted({row.workers for row in shown})], "workers", lying=False
        ),
        y=p.quantity("share of the time", format=".0%", scale={"domain": [0, 1]}),
        styles={name: Style(color) for _, name, color in PARTS},
        panels=panels,
        columns=columns_of(shown, names),
        height=220,
        wide=len(panels) > 1,
    )


MOST_STEPS = 8
"""Pipelines whose step is drawn."""
_PASSES = {"forward": "#2E93CC", "backward": "#D55E00", "update": "#878D96"}


def stages(drawing: Drawing) -> Plot | None:
    """What each stage of a pipeline did in one step, from measured times; None without one."""
    measured = [
        (row, found)
        for row in drawing.rows
        if (found := next((run.stages for run in row.runs if run.stages), None))
    ]
    shown = measured[:MOST_STEPS]
    if not shown:
        return None
    traces: list[Trace] = []
    panels = []
    for row, found in shown:
        idle = sum(found.bubble) / len(found.bubble)
        panels.append(
            f"{row.name} · bubble {idle:.0%} (equal stages {found.ideal_bubble:.0%}), slowest "
            f"{found.imbalance:.2f} x mean"
        )
        first = min((slot.begin for own in found.slots for slot in own), default=0.0)
        for kind in _PASSES:
            slots = [
                {
                    "x": 1e3 * (slot.begin - first),
                    "end": 1e3 * (slot.end - first),
                    "y": f"worker {worker}",
                    "tip": f"{kind} of micro-batch {slot.micro_batch} through stage {slot.stage}: "
                    f"{1e3 * (slot.end - slot.begin):.2f} ms",
                }
                for worker, own in enumerate(found.slots)
                for slot in own
                if slot.kind == kind
            ]
            if slots:
                traces.append(p.trace("slot", slots, panel=panels[-1], series=kind, key=row.name))
    names = sorted({name for trace in traces for name in trace["y"]}, key=lambda n: int(n[7:]))
    cut = (
        f" The first {MOST_STEPS} of {len(measured)} pipelines."
        if len(measured) > len(shown)
        else ""
    )
    return Plot(
        name="stages",
        title="A step of each pipeline",
        note="One step after the timed training, in the first copy of the first run; what is empty "
        "is the bubble. Each operation was timed by itself." + cut,
        description="For each worker, bars of its forward and backward passes and its updates over "
        "the time of one step.",
        traces=traces,
        layers=[
            {
                "kind": "slot",
                "mark": {"type": "bar", "stroke": "white", "strokeWidth": 0.4},
                "encoding": {
                    "x2": {"field": "end"},
                    "tooltip": {"field": "tip", "type": "nominal"},
                },
            }
        ],
        x=p.quantity("milliseconds since the begin of the step"),
        y=p.labels(names),
        styles={name: Style(color) for name, color in _PASSES.items()},
        panels=panels,
        columns=1,
        height=p.BAR_PX,
        bars_per_label=1,
        wide=True,
    )


# Over epochs and steps.

MOST_POINTS = 250
"""Points of one curve; longer ones are drawn as means of equal stretches of steps."""
MOST_MARKERS = 40
MOST_RULES = 25
"""Intervals of one curve where they are rules beside those of many other curves."""
SAME = 2e-3
"""Curves that are nowhere farther apart than this part of a plot's height share a line."""

DIFFERS = (
    " With other numbers of workers, BatchNorm normalises other parts of a batch and gradients are "
    "summed in another order: accuracies differ a little."
)

Curve = tuple[list[float], list[float]]
Curves = Callable[[Sequence[RunFigures]], list[Curve]]
Statistic = Callable[[Sequence[float], Sequence[RunFigures]], Stat | None]


def _runs(rows: Sequence[Row]) -> list[RunFigures]:
    """The runs with something to draw; those that the gate failed are left out."""
    return [run for row in rows for run in row.runs if run.epochs and run.gate != "failed"]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over repeats at each place; a repeat that ended early counts up to its end."""
    x = max((curve[0] for curve in curves), key=len)
    return x, [_mean([y[place] for _, y in curves if place < len(y)]) for place in range(len(x))]


def _thinned(curve: Curve, steps: int) -> Curve:
    """Means of equal stretches of steps where there are many; `steps` are those of the longest
    repeat, so that the stretches of all repeats are the same steps."""
    x, y = curve
    stretch = max(1, math.ceil(steps / MOST_POINTS))
    if stretch == 1:
        return curve
    starts = range(0, len(x), stretch)
    return (
        [_mean(x[start : start + stretch]) for start in starts],
        [_mean(y[start : start + stretch]) for start in starts],
    )


def _by_epoch(run: RunFigures, figure: Callable[[EpochFinished], float]) -> Curve:
    return [epoch.epoch + 1.0 for epoch in run.epochs], [figure(epoch) for epoch in run.epochs]


def _by_step(run: RunFigures, figure: Callable[[EpochFinished], list[float]]) -> Curve:
    """Values per step, counted from 1."""
    steps = [epoch.first_step + n + 1.0 for epoch in run.epochs for n in range(len(figure(epoch)))]
    return steps, [value for epoch in run.epochs for value in figure(epoch)]


def _same(left: Curve, right: Curve, height: float) -> bool:
    """Whether two lines are equal up to the end of the shorter one."""
    apart, pairs = SAME * height, zip(left[1], right[1], strict=False)
    return all(abs(a - b) <= apart for a, b in pairs if not math.isnan(a + b))


def _curves(
    drawing: Drawing,
    rows: Sequence[Row],
    curves: Curves,
    digits: str,
    statistic: Statistic | None = None,
    panel: Sequence[str] = WORK,
) -> tuple[list[Trace], dict[str, Style], list[str]]:
    """Traces, styles and panels of the mean curve of each row, with its 95 % interval by
    `statistic`; curves that coincide are merged."""
    names = telling(rows, always=panel)
    across, within = ([n for n in names if (n in panel) == wanted] for wanted in (True, False))
    repeats = {n: curves(runs) for n, row in enumerate(rows) if (runs := _runs([row]))}
    means = {n: _mean_curve(found) for n, found in repeats.items()}
    drawn = {n: mean for n, mean in means.items() if mean[0]}
    finite = [y for _, ys in drawn.values() for y in ys if math.isfinite(y)]
    height = max(finite, default=1.0) - min(finite, default=0.0)
    groups: list[tuple[str, Curve, list[int]]] = []
    for n, found in sorted(drawn.items(), key=lambda each: -len(each[1][0])):
        heading = written(rows[n], across)
        for known, other, alike in groups:
            if known == heading and _same(other, found, height):
                alike.append(n)
                break
        else:
            groups.append((heading, found, [n]))
    groups.sort(key=lambda each: min(each[2]))
    traces: list[Trace] = []
    styles: dict[str, Style] = {}
    intervals: list[tuple[Trace, list[RunFigures], list[Curve]]] = []
    every = [rows[n] for n in drawn]
    for heading, (x, y), places in groups:
        members = [rows[n] for n in places]
        label = _series_name(members, within, every)
        styles.setdefault(label, drawing.styles.of(members[0], within))
        marked = len(x) <= MOST_MARKERS
        values = [
            {"x": a, "y": b if math.isfinite(b) else None}
            | ({"tip": f"{label}\n{a:.5g}: {b:{digits}}"} if marked else {})
            for a, b in zip(x, y, strict=True)
        ]
        keys = "\n".join(row.name for row in members)
        traces.append(p.trace("mean", values, panel=heading, series=label, tip=label, key=keys))
        if statistic and len(members) == 1 and len(runs := _runs(members)) > 1:
            intervals.append((traces[-1], runs, repeats[places[0]]))
    if statistic:
        # upright rules at every point of many curves would be an area
        most = MOST_RULES if len(styles) > p.MOST_BANDS else 0
        traces += [_interval(*each, statistic, most) for each in intervals]
    return traces, styles, list(dict.fromkeys(heading for heading, _, _ in groups))


def _interval(
    mean: Trace,
    runs: Sequence[RunFigures],
    repeats: Sequence[Curve],
    statistic: Statistic,
    most: int,
) -> Trace:
    """The 95 % interval along a mean over repeats; `most`: its number of places, 0 for all."""
    points = []
    for place in range(0, len(mean["x"]), math.ceil(len(mean["x"]) / most) if most else 1):
        values = [y[place] for _, y in repeats if place < len(y)]
        low, high = _ends(values, runs, statistic)
        points.append({"x": mean["x"][place], "y": mean["y"][place], "low": low, "high": high})
    same = {name: mean[name] for name in ("panel", "series", "key")}
    return p.trace("interval", points, **same)


def _ends(
    values: Sequence[float], runs: Sequence[RunFigures], statistic: Statistic
) -> tuple[float | None, float | None]:
    found = statistic(values, runs) if all(map(math.isfinite, values)) else None
    if found is None or found.high is None or not math.isfinite(found.high):
        return None, None
    return _end(found.low, 1.0), found.high


def _series_name(members: Sequence[Row], names: Sequence[str], drawn: Sequence[Row]) -> str:
    """The values of the facets `names` that all members share, or else the members' names."""
    if len(members) == 1:
        row = members[0]
        said = written(row, names) or shared([row], ("strategy", "loader"))
        return said if row.status == "finished" else f"{said} ({row.status})"
    if len(members) == len(drawn):
        return "all variants"
    alike = shared(members, names)
    others = [row for row in drawn if row not in members and shared([row], names) != ""]
    if alike and not any(alike == shared([*members, row], names) for row in others):
        return alike
    return text.listed([written(row, names) or row.name for row in members], 3)


def _curve_layers(traces: Sequence[Trace], series: int, width: float = 1.8) -> list[p.Layer]:
    marked = all(len(trace["x"]) <= MOST_MARKERS for trace in traces if trace["kind"] == "mean")
    hover = {"encoding": {"tooltip": {"field": "tip", "type": "nominal"}}}
    line = p.line(width=width)
    layers = [
        p.level(),
        p.intervals(series, "interval", clip=True),
        line | ({} if marked else hover),
    ]
    return [*layers, p.markers(size=28)] if marked else layers


def validation(
    drawing: Drawing, rows: Sequence[Row] | None = None, suffix: str = ""
) -> Plot | None:
    """The primary metric over epochs, with the intervals over repeats."""
    rows = [row for row in rows or drawing.rows if not script_name(row.runs[0].plan)]
    metric, facts = drawing.primary, drawing.main
    share = metric.unit == "share"
    write = text.writer(metric.unit, ())

    def curves(runs: Sequence[RunFigures]) -> list[Curve]:
        return [_by_epoch(run, lambda e: e.validation[facts.name]) for run in runs]

    def statistic(values: Sequence[float], runs: Sequence[RunFigures]) -> Stat | None:
        if metric.reduction != "accuracy":
            return summarize(values)
        return accuracy_of(values, min(run.val_samples for run in runs))

    traces, styles, panels = _curves(drawing, rows, curves, ".2%" if share else ".4g", statistic)
    if not traces:
        return None
    last = max(trace["x"][-1] for trace in traces)
    targets = sorted({run.target for r in rows for run in r.runs if run.target is not None})
    traces += [
        level_trace({0: each, last: each}, f"target {each}") | {"panel": panel}
        for panel in panels
        for each in targets
    ]
    finals = [row.final.mean for row in rows if row.final]
    what = "accuracies" if facts.name == "accuracy" else "values"
    reached = (
        f" Final {what} lie from {write(min(finals))} to {write(max(finals))}." if finals else ""
    )
    aim = f" Dotted: target {text.listed([write(each) for each in targets])}."
    banded = any(trace["kind"] == "interval" for trace in traces)
    return Plot(
        name=f"{facts.name}{suffix}",
        title=f"Validation {facts.title.lower()}",
        note=f"{facts.note} over the whole validation set, mean over repeats"
        + (" with 95 % intervals." if banded else ".")
        + (aim if targets else "")
        + (DIFFERS if len({row.workers for row in rows}) > 1 else ""),
        description=f"Lines over epochs.{reached}",
        traces=traces,
        layers=_curve_layers(traces, len(styles)),
        x=p.quantity("epochs", tickMinStep=1),
        y=_of_validation(drawing),
        styles=styles,
        panels=panels,
        columns=2,
        height=300,
        wide=len(panels) > 1,
    )


def _of_validation(drawing: Drawing) -> dict[str, Any]:
    """The axis of the primary metric."""
    form = {"format": "~%"} if drawing.primary.unit == "share" else {}
    return p.quantity(f"validation {drawing.main.title.lower()}", zero=False, **form)


def loss(drawing: Drawing) -> Plot | None:
    def curves(runs: Sequence[RunFigures]) -> list[Curve]:
        found = [_by_step(run, lambda e: e.losses) for run in runs]
        return [_thinned(each, max(len(x) for x, _ in found)) for each in found]

    traces, styles, panels = _curves(
        drawing, drawing.rows, curves, ".4f", lambda values, _: summarize(values)
    )
    if not traces:
        return None
    means = [y for trace in traces if trace["kind"] == "mean" for y in trace["y"]]
    top = max((y for y in means if y is not None), default=1.0)
    banded = any(trace["kind"] == "interval" for trace in traces)
    steps = max(e.first_step + len(e.losses) for run in _runs(drawing.rows) for e in run.epochs)
    stretch = math.ceil(steps / MOST_POINTS)
    thinned = f" Drawn as means of up to {stretch} steps." if stretch > 1 else ""
    return Plot(
        name="loss",
        title="Training loss",
        note="Mean loss of the global batch in each optimiser step, mean over repeats"
        + (" with 95 % intervals." if banded else ".")
        + thinned,
        description="Lines over optimiser steps.",
        traces=traces,
        layers=_curve_layers(traces, len(styles), 1.3),
        x=p.quantity("optimiser steps"),
        # of a few repeats the intervals reach far beyond: they are cut, the lines are not
        y=p.quantity("training loss", scale={"domainMax": top} if banded else {}),
        styles=styles,
        panels=panels,
        columns=2,
        height=300,
        can_be_log=True,
        wide=len(panels) > 1,
    )


def learning_rate(drawing: Drawing) -> Plot | None:
    def curves(runs: Sequence[RunFigures]) -> list[Curve]:
        run = max(runs, key=lambda run: len(run.epochs))
        steps, rates = _by_step(run, lambda e: e.learning_rates)
        steps, rates = _thinned((steps, rates), len(steps))
        return [([step / run.plan["steps_per_epoch"] for step in steps], rates)]

    traces, styles, _ = _curves(drawing, drawing.rows, curves, ".4g", panel=())
    if not traces:
        return None
    return Plot(
        name="learning-rate",
        title="Learning rate",
        note="The rate that each optimiser step used.",
        description=f"{text.count(len(traces), 'line')} over epochs.",
        traces=traces,
        layers=_curve_layers(traces, len(styles)),
        x=p.quantity("epochs"),
        y=p.quantity("learning rate"),
        styles=styles,
        can_be_log=True,
    )


def validation_batch(drawing: Drawing) -> Plot | None:
    """The final primary metric over the global batch (Aach et al. 2023, Fig. 8b); None unless some
    series has several batches."""
    facts, finals = drawing.main, [row.final for row in drawing.rows]
    shown = shown_metric(drawing.rows, [drawing.primary.name], "")
    return lines_over(
        drawing,
        replace(shown, axis=_of_validation(drawing)),
        BATCHES,
        quantity=drawing.primary.compared,
        name=f"{facts.name}-batch",
        title=f"{facts.title} over global batch",
        note=f"{facts.note} after the last epoch: {interval_note(finals)}.",
    )


def validation_largest(drawing: Drawing) -> Plot | None:
    """The primary metric over epochs of the rows with the largest global batch of their work (Aach
    et al. 2023, Fig. 9)."""
    shown = [row for row in drawing.rows if row.final]
    names = telling(shown, lambda row: row.global_batch, WORK)
    most: dict[str, int] = {}  # by the key of their work
    sizes: dict[str, set[int]] = {}
    for row in shown:
        work = work_key(row.runs[0].plan)
        most[work] = max(most.get(work, 0), row.global_batch)
        sizes.setdefault(written(row, names), set()).add(row.global_batch)
    if all(len(batches) < 2 for batches in sizes.values()):
        return None
    chosen = [row for row in shown if row.global_batch == most[work_key(row.runs[0].plan)]]
    plot = validation(drawing, chosen, "-largest")
    largest = ", ".join(f"{size:,}" for size in sorted({row.global_batch for row in chosen}))
    return plot and replace(plot, title=f"{drawing.main.title} at the largest batch ({largest})")


PLOTS: tuple[Callable[[Drawing], Plot | None], ...] = (
    lambda drawing: drawing.scaling,
    against_best,
    lambda drawing: drawing.throughputs,
    time_to_accuracy,
    speed_up,
    efficiency,
    efficiency_models,
    training_time,
    speed_up_works,
    epoch_time,
    shares,
    stages,
    data_wait,
    validation_batch,
    validation_largest,
    validation,
    lambda drawing: confusion(drawing.rows),
    loss,
    learning_rate,
    memory,
    energy,
    utilisation,
)
