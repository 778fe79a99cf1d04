"""Build a suite's plots: lines over the workers or the batch, bars, and curves over epochs or
steps.

Each function returns None if there is nothing to draw. `plots.py` declares the plots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from raysuite.records import EpochFinished, Ratio, Row, RunFigures, Stat
from raysuite.records.names import workers_name
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.against import Comparison
from raysuite.report.facets import WORK, Styles, facets, shared, telling, written
from raysuite.report.plot import Layer, Plot, Style, Trace
from raysuite.report.tables import metric_named
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts

Value = Stat | Ratio
Figure = Callable[[Row], Value | None]


@dataclass(frozen=True)
class Drawing:
    """The rows and the comparison from which plots are drawn."""

    rows: Sequence[Row]
    comparison: Comparison | None = None
    """A comparison with a paper, whose values are drawn as markers."""

    @property
    def task(self) -> TaskFacts:
        return self.rows[0].task if self.rows else CLASSIFICATION

    def shown(self, *names: str, axis: str = "") -> Shown:
        """Call `shown_metric` for all rows; `axis` is the axis title."""
        return shown_metric(self.rows, names, axis)

    @cached_property
    def throughput_lines(self) -> Plot | None:
        """Throughput over workers, one panel for each combination of loader, model and data set
        (Aach et al. 2023, Fig. 3)."""
        return lines(self, *self.throughput, panel=("loader", *WORK), compared="throughput")

    @property
    def throughput(self) -> tuple[str, str, str, Shown]:
        """The arguments `name`, `title`, `note` and `shown` of the plots of throughput."""
        note = f"Warm-up is left out; {interval_note(row.throughput for row in self.rows)}."
        shown = self.shown("throughput", axis=f"{self.task.unit} per second")
        return "throughput", "Throughput", note, shown

    @cached_property
    def styles(self) -> Styles:
        return Styles(self.rows)


# Values of rows.


@dataclass(frozen=True)
class Shown:
    """A figure that rows have, and the unit in which a plot shows the figure."""

    figure: Figure
    axis: Layer
    write: text.Writer = text.number
    scale: float = 1.0
    """Factor from the figure's unit to that of the axis."""

    def tip(self, row: Row) -> str:
        value = self.figure(row)
        if isinstance(value, Stat):
            return f"{row.name}\n{text.stat(value, self.write)}"
        return f"{row.name}\n{text.ratio(value)} against {row.baseline}"

    def best(self, rows: Sequence[Row], pick: Callable[..., tuple[float, str]] = max) -> str:
        """The largest value (with `pick=min` the smallest) as text: `1.87 s (ddp · 2 workers)`."""
        found = [(figure.value, row.name) for row in rows if (figure := self.figure(row))]
        value, name = pick(found, key=itemgetter(0))
        return f"{self.write(value)} ({name})"


def shown_metric(rows: Sequence[Row], names: Sequence[str], title: str) -> Shown:
    """The first of the metrics `names` for which any row has a value, in one unit for all rows."""
    has = [name for name in names if any(row.figures.get(name) for row in rows)]
    metric = metric_named((has or list(names))[0], rows)

    def figure(row: Row) -> Stat | None:
        return row.figures.get(metric.name)

    write = text.writer(metric.unit, [stat.mean for row in rows if (stat := figure(row))])
    if isinstance(write, text.Multiple):
        return Shown(figure, p.quantity(f"{title}, {write.name}"), write, 1 / write.size)
    if metric.unit == "share":
        return Shown(figure, p.quantity(title, format="~%"), write)
    return Shown(figure, p.quantity(title), lambda value: f"{text.number(value)} {metric.unit}")


def interval_note(values: Iterable[Value | None]) -> str:
    """A note on what the points of a plot are. It mentions intervals only if some are drawn."""
    drawn = any(value and value.low is not None for value in values)
    return "means over repeats" + (" with 95 % intervals" if drawn else "")


def traces_of(
    rows: Sequence[Row], shown: Shown, x: Callable[[Row], Any], panel: str = "", series: str = ""
) -> list[Trace]:
    """Two traces: the rows' means with their intervals, and the values of single repeats."""
    scale = shown.scale
    means, repeats = [], []
    for row in rows:
        value = shown.figure(row)
        place = {"x": x(row), "key": row.name}
        ends = {end: value and end_of(getattr(value, end), scale) for end in ("low", "high")}
        y = value.value * scale if value else 0.0
        means.append({**place, "y": y, **ends, "tip": shown.tip(row)})
        for each in value.values if isinstance(value, Stat) and value.n > 1 else ():
            tip = f"{row.name}\none repeat: {shown.write(each)}"
            repeats.append({**place, "y": each * scale, "tip": tip})
    found = {"mean": means, "repeat": repeats}
    return [p.trace(kind, each, panel=panel, series=series) for kind, each in found.items() if each]


def _dots_note(traces: Sequence[Trace]) -> str:
    return " Dots are single repeats." if any(each["kind"] == "repeat" for each in traces) else ""


def end_of(value: float | None, scale: float = 1.0) -> float | None:
    """The end of an interval in the unit of the axis; None if it cannot be drawn."""
    return None if value is None or not math.isfinite(value) else max(0.0, value) * scale


def headings(rows: Sequence[Row], across: Sequence[str]) -> list[str]:
    """Panel titles, ordered so that the last facet varies fastest."""
    places = {name: list(dict.fromkeys(written(row, [name]) for row in rows)) for name in across}
    ordered = sorted(
        rows, key=lambda row: [places[name].index(written(row, [name])) for name in across]
    )
    return list(dict.fromkeys(written(row, across) for row in ordered))


def columns_of(rows: Sequence[Row], across: Sequence[str]) -> int:
    """Number of panels in a row. With several facets, it is the number of values of the last facet,
    if this is 2 to 4. Otherwise it is 2 for four panels, else 3."""
    values = len({written(row, across[-1:]) for row in rows})
    if len(across) > 1 and 2 <= values <= 4:
        return values
    return 2 if values == 4 else 3


def titled(title: str, said: str) -> str:
    return f"{title} – {said}" if said else title


Made = Plot | None


# Line plots over workers or another number.


@dataclass(frozen=True)
class Over:
    """The quantity on the x axis of a line plot."""

    title: str
    value: Callable[[Row], int]
    shared: Sequence[str] = ("strategy", "loader")
    """Facets from which a line gets its name if no facet distinguishes it from other lines."""
    log: bool | None = None
    """Whether the axis is logarithmic; with None, it is logarithmic only if small numbers would be
    too close together on a linear axis."""


WORKERS = Over("workers", lambda row: row.workers)
BATCHES = Over("global batch", lambda row: row.global_batch, ("schedule",), log=True)

Ideal = Callable[[Sequence[Row]], Mapping[str, Mapping[float, float]]]
"""A function: rows of one panel -> name of each ideal line -> its points (x -> y)."""


def lines(
    drawing: Drawing,
    name: str,
    title: str,
    note: str,
    shown: Shown,
    *,
    over: Over = WORKERS,
    panel: Collection[str] = WORK,
    line_per: str = "",
    compared: str = "",
    ideal: Ideal = lambda rows: {},
    log: bool = False,
) -> Made:
    """Draw a line for each series, in a panel for each combination of values of the facets `panel`.
    Return None unless a series has several points.

    `line_per` is a facet that replaces `panel`: the lines of a panel differ only in this facet. If
    rows do not differ in it, None is returned. `compared` is the quantity whose published values
    are drawn. `log` makes the y axis logarithmic.
    """
    rows = [row for row in drawing.rows if shown.figure(row)]
    # keep the strategy, even if the number of workers determines it
    names = telling(rows, over.value, ("strategy", *WORK))
    series: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        # a line does not join ratios to different baselines
        base = row.baseline if isinstance(shown.figure(row), Ratio) else None
        series.setdefault((written(row, names), base), []).append(row)
    if all(len(members) < 2 for members in series.values()) or not {line_per} <= {"", *names}:
        return None
    panel = {*names} - {line_per} if line_per else panel
    # each column of panels is one loader
    across = sorted((each for each in names if each in panel), key=lambda each: each == "loader")
    within = [each for each in names if each not in panel]
    panels = headings(rows, across)
    styles: dict[str, Style] = {}
    traces: list[Trace] = []
    for heading in panels:
        inside = [m for m in series.values() if written(m[0], across) == heading]
        levels = ideal([row for members in inside for row in members])
        traces += [level(each, called, heading) for called, each in levels.items()]
        labels = [written(m[0], within) or shared(m, over.shared) for m in inside]
        for members, label in zip(inside, labels, strict=True):
            if labels.count(label) > 1:
                label += f" against {members[0].baseline}"
            styles.setdefault(label, drawing.styles.of(members[0], within))
            members.sort(key=over.value)
            traces += traces_of(members, shown, over.value, heading, label)
    marks = _published(drawing, compared, rows, across, shown.scale, over.value)
    traces += [mark for mark in marks if mark["panel"] in panels]
    both = shared(rows, [each for each in (*over.shared, *WORK) if each not in names])
    return Plot(
        name=name,
        title=titled(title, both),
        note=note + _dots_note(traces) + (" Open diamonds are a paper's values." if marks else ""),
        description=f"Lines over {over.title}; the highest point is {shown.best(rows)}.",
        traces=traces,
        layers=[p.LEVEL, p.intervals(len(styles)), p.line(), p.DOTS, p.markers(), p.PUBLISHED],
        x=p.counts(over.title, sorted({over.value(row) for row in rows}), over.log),
        y=shown.axis | ({"scale": {"type": "log", "nice": True}} if log else {}),
        styles=styles,
        panels=panels,
        columns=columns_of(rows, across),
        wide=len(panels) > 1,
    )


def either(
    drawing: Drawing, name: str, title: str, note: str, shown: Shown, **options: Any
) -> Made:
    """Draw lines or, if no series has several numbers of workers, a bar for each variant."""
    drawn = lines(drawing, name, title, note, shown, **options)
    return drawn or bars(drawing, name, title, note, shown, by_work=False)


def _published(
    drawing: Drawing,
    quantity: str,
    rows: Sequence[Row],
    across: Sequence[str],
    scale: float,
    x: Callable[[Row], int],
) -> list[Trace]:
    """A paper's values of a quantity, each in the panel and at the x value of its row."""
    compared = drawing.comparison
    if compared is None or not compared.published:
        return []
    named = {row.name: row for row in rows}
    marks: dict[tuple[str, float, float], Trace] = {}
    for line in compared.lines:
        row = named.get(line.ours_name)
        if line.quantity == quantity and row is not None:
            panel, point = written(row, across), {"x": x(row), "y": line.theirs.value * scale}
            value = f"{line.bound} {text.number(line.theirs.value)}".strip()
            tip = f"{compared.title}\n{line.theirs_name}: {value} ({line.source})"
            mark = p.trace("published", [point], panel=panel, tip=tip)
            marks[panel, point["x"], point["y"]] = mark
    return list(marks.values())


def level(values: Mapping[float, float], name: str, panel: str) -> Trace:
    return p.trace("level", [{"x": x, "y": y} for x, y in values.items()], series=name, panel=panel)


# Bars.

MOST_BARS = 12
"""Largest number of bars in a group. With more, only rows with the most workers are drawn."""
MOST_LINES = 200
"""Largest number of horizontal bars. With 2,000, vl-convert 1.9.0 ends with an error."""


def _fastest(rows: Sequence[Row]) -> list[Row]:
    """The MOST_LINES rows with the highest throughputs, in their original order."""
    speeds = [row.throughput.mean if row.throughput else 0.0 for row in rows]
    places = sorted(range(len(rows)), key=lambda place: -speeds[place])[:MOST_LINES]
    return [rows[place] for place in sorted(places)]


def bars(
    drawing: Drawing,
    name: str,
    title: str,
    note: str,
    shown: Shown,
    *,
    same_y: bool = True,
    by_work: bool | None = None,
) -> Made:
    """Draw vertical bars in groups, if there are several data sets or networks (Jansen et al. 2020,
    Mahon et al. 2020), else one horizontal bar per variant. None if nothing was measured.

    `same_y`: whether panels share the axis of values (an epoch of ImageNet takes a thousand times
    as long as one of MNIST). `by_work`: False always draws horizontal bars. True draws vertical
    bars, or nothing if there is only one data set and network.
    """
    rows = [row for row in drawing.rows if shown.figure(row)]
    several = by_work is not False and len({written(row, WORK) for row in rows}) > 1
    if not rows or (by_work and not several):
        return None
    category, panel = "", ""
    if several:
        models = len({facets(row)["model"] for row in rows}) > 1
        category, panel = ("model", "data") if models else ("data", "model")
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
        fastest = _fastest(rows)
        if left := len(rows) - len(fastest):
            note += f" {text.count(left, 'slower variant')} left out."
        rows = fastest
        names = telling(drawing.rows, lambda row: row.workers)
        legend = [workers_name(count) for count in sorted({row.workers for row in drawing.rows})]
        colors = p.SHADES

    def label(row: Row) -> str:
        return facets(row)[category] if several else written(row, names) or row.series

    def series(row: Row) -> str:
        return written(row, names) or common if several else workers_name(row.workers)

    def heading(row: Row) -> str:
        return facets(row)[panel] if several else ""

    panels = list(dict.fromkeys(map(heading, rows)))
    traces = []
    for place in panels:
        for entry in legend:
            mine = [row for row in rows if (heading(row), series(row)) == (place, entry)]
            for each in traces_of(mine, shown, label, place, entry):
                if each["kind"] == "mean":
                    each["kind"] = "bar"
                if not several:
                    each["x"], each["y"] = each["y"], each["x"]
                traces.append(each)
    order = p.labels(dict.fromkeys(map(label, rows)), lying=not several)
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
    return telling(rows, lambda row: tuple(facets(row)[each] for each in WORK))


# Over epochs and steps.

MOST_POINTS = 250
"""Largest number of points in a curve. Longer curves are drawn as means over equal stretches."""
MOST_MARKERS = 40
MOST_RULES = 25
"""Largest number of intervals along a curve if each interval is a vertical rule, as it is if more
than MOST_BANDS curves are drawn."""
SAME = 2e-3
"""Curves that are never farther apart than this share of a plot's height are drawn as one line."""

Curve = tuple[list[float], list[float]]
Statistic = Callable[[Sequence[float], Sequence[RunFigures]], Stat | None]


def curves(
    drawing: Drawing,
    name: str,
    title: str,
    note: str,
    values: Callable[[Sequence[RunFigures]], list[Curve]],
    *,
    x: Layer,
    y: Layer,
    digits: str = ".4g",
    statistic: Statistic | None = None,
    rows: Sequence[Row] | None = None,
    panel: Sequence[str] = WORK,
    targets: Sequence[float] = (),
    result: str = "",
    cut: bool = False,
    width: float = 1.8,
    height: int = 300,
    can_be_log: bool = False,
) -> Made:
    """Draw a mean curve for each row, with the 95 % interval that `statistic` computes. `values`
    returns the curves of runs. Curves that coincide are merged. None if no curve has a point.

    If intervals are drawn, "with 95 % intervals" is added to "mean over repeats" in `note`.
    `targets` are dotted lines. `result` is appended to the description. `cut`: if intervals are
    drawn, end the y axis at the highest mean, because intervals of few repeats can reach far beyond
    it.
    """
    rows = drawing.rows if rows is None else rows
    names = telling(rows, always=panel)
    across, within = ([n for n in names if (n in panel) == wanted] for wanted in (True, False))
    found = {n: values(runs) for n, row in enumerate(rows) if (runs := runs_of([row]))}
    means = {n: mean for n, each in found.items() if (mean := _mean_curve(each))[0]}
    every = [rows[n] for n in means]
    traces: list[Trace] = []
    styles: dict[str, Style] = {}
    intervals: list[tuple[Trace, list[RunFigures], list[Curve]]] = []
    groups = _merged(means, [written(row, across) for row in rows])
    for heading, (places, heights), numbers in groups:
        members = [rows[n] for n in numbers]
        label = _series_name(members, within, every)
        styles.setdefault(label, drawing.styles.of(members[0], within))
        few = len(places) <= MOST_MARKERS
        points = [
            {"x": a, "y": b if math.isfinite(b) else None}
            | ({"tip": f"{label}\n{a:.5g}: {b:{digits}}"} if few else {})
            for a, b in zip(places, heights, strict=True)
        ]
        keys = "\n".join(row.name for row in members)
        traces.append(p.trace("mean", points, panel=heading, series=label, tip=label, key=keys))
        if statistic and len(members) == 1 and len(runs := runs_of(members)) > 1:
            intervals.append((traces[-1], runs, found[numbers[0]]))
    if not traces:
        return None
    marked = all(len(trace["x"]) <= MOST_MARKERS for trace in traces)
    last = max(trace["x"][-1] for trace in traces)
    top = max((y for trace in traces for y in trace["y"] if y is not None), default=1.0)
    panels = list(dict.fromkeys(heading for heading, _, _ in groups))
    if statistic and intervals:
        # vertical rules at every point of many curves would fill an area
        most = MOST_RULES if len(styles) > p.MOST_BANDS else 0
        traces += [interval_trace(*each, statistic, most) for each in intervals]
        note = note.replace("mean over repeats", "mean over repeats with 95 % intervals")
        if cut:
            y = y | {"scale": y["scale"] | {"domainMax": top}}
    levels = [({0: each, last: each}, f"target {each}") for each in targets]
    traces += [level(*each, heading) for heading in panels for each in levels]
    rules = p.intervals(len(styles), "interval", clip=True)
    line = p.line(width=width, encoding={} if marked else p.TIP)
    return Plot(
        name=name,
        title=title,
        note=note,
        description=f"{text.count(len(groups), 'line')} over {x['title']}.{result}",
        traces=traces,
        layers=[p.LEVEL, rules, line, *([p.markers(size=28)] if marked else [])],
        x=x,
        y=y,
        styles=styles,
        panels=panels,
        columns=2,
        height=height,
        can_be_log=can_be_log,
        wide=len(panels) > 1,
    )


def runs_of(rows: Sequence[Row]) -> list[RunFigures]:
    """The runs that have epochs and did not fail the gate."""
    return [run for row in rows for run in row.runs if run.epochs and run.gate != "failed"]


def by_epoch(run: RunFigures, figure: Callable[[EpochFinished], float]) -> Curve:
    return [epoch.epoch + 1.0 for epoch in run.epochs], [figure(epoch) for epoch in run.epochs]


def by_step(run: RunFigures, figure: Callable[[EpochFinished], list[float]]) -> Curve:
    """The values of `figure` over the steps of a run; the first step is 1."""
    steps = [epoch.first_step + n + 1.0 for epoch in run.epochs for n in range(len(figure(epoch)))]
    return steps, [value for epoch in run.epochs for value in figure(epoch)]


def thinned(curves: Sequence[Curve]) -> list[Curve]:
    """Replace equally long stretches of points by their means, if a curve has more than MOST_POINTS
    points."""
    stretch = max(1, math.ceil(max(len(x) for x, _ in curves) / MOST_POINTS))

    def means(values: list[float]) -> list[float]:
        starts = range(0, len(values), stretch)
        return [_mean(values[start : start + stretch]) for start in starts]

    return [(means(x), means(y)) for x, y in curves]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over repeats at each x; a repeat that ended early counts up to its end."""
    x = max((curve[0] for curve in curves), key=len)
    return x, [_mean([y[place] for _, y in curves if place < len(y)]) for place in range(len(x))]


def _merged(
    curves: Mapping[int, Curve], panels: Sequence[str]
) -> list[tuple[str, Curve, list[int]]]:
    """Groups of curves that coincide in a panel: (panel, one of the curves, keys of all curves)."""
    finite = [y for _, ys in curves.values() for y in ys if math.isfinite(y)]
    apart = SAME * (max(finite, default=1.0) - min(finite, default=0.0))

    def same(left: Curve, right: Curve) -> bool:
        """Whether two lines are equal up to the end of the shorter line."""
        pairs = zip(left[1], right[1], strict=False)
        return all(abs(a - b) <= apart for a, b in pairs if not math.isnan(a + b))

    def near(first: float) -> Sequence[int | None]:
        """The bins of first values in which there may be curves that begin near `first`. The bin
        is the second part of a key of `places`; the bin `None` holds values that are not
        finite."""
        if not math.isfinite(first):
            return [None, *{at for _, at in places}]
        at = math.floor(first / (2 * apart or 1.0))
        return at, at - 1, at + 1, None

    groups: list[tuple[str, Curve, list[int]]] = []
    places: dict[tuple[str, int | None], list[int]] = {}
    for n, found in sorted(curves.items(), key=lambda each: -len(each[1][0])):
        around = near(found[1][0])
        alike = sorted(i for at in around for i in places.get((panels[n], at), ()))
        first = next((i for i in alike if same(groups[i][1], found)), None)
        if first is not None:
            groups[first][2].append(n)
        else:
            places.setdefault((panels[n], around[0]), []).append(len(groups))
            groups.append((panels[n], found, [n]))
    return sorted(groups, key=lambda each: min(each[2]))


def interval_trace(
    mean: Trace,
    runs: Sequence[RunFigures],
    repeats: Sequence[Curve],
    statistic: Statistic,
    most: int,
) -> Trace:
    """The 95 % interval along a mean over repeats. `most`: largest number of points; 0: all."""
    points = []
    for place in range(0, len(mean["x"]), math.ceil(len(mean["x"]) / most) if most else 1):
        values = [y[place] for _, y in repeats if place < len(y)]
        found = statistic(values, runs) if all(map(math.isfinite, values)) else None
        low: float | None = None
        high: float | None = None
        if found is not None and found.high is not None and math.isfinite(found.high):
            low, high = end_of(found.low), found.high
        points.append({"x": mean["x"][place], "y": mean["y"][place], "low": low, "high": high})
    same = {name: mean[name] for name in ("panel", "series", "key")}
    return p.trace("interval", points, **same)


def _series_name(members: Sequence[Row], names: Sequence[str], drawn: Sequence[Row]) -> str:
    """The name of the line that stands for the rows `members`.

    A single row: its values of the facets `names`, and its status unless it finished. All drawn
    rows: `all variants`. Otherwise: the values of `names` that are common to all members or, if
    there are none or another drawn row has them too, a list of the members.
    """
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
