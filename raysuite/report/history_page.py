"""A page with the throughput of each variant over results folders, as a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from raysuite.records.history import History, Point
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.page import render
from raysuite.report.plot import Plot, Style, Trace
from raysuite.report.summary import Sentence
from raysuite.report.tables import Column, Sheet, sheet_of


def page(found: Sequence[History]) -> str:
    """A page with a plot and a table for each variant. It loads nothing over the network."""
    said = [
        Sentence(
            "problem" if point.change.value < 1 else "result",
            f"{each.name}, {_date(point)}: {change(point)}",
        )
        for each in found
        for point in each.points
        if point.change is not None
    ]
    return render(
        "history.html.jinja",
        [history_plot(each, number) for number, each in enumerate(found)],
        sheets=[history_sheet(each, number) for number, each in enumerate(found)],
        said=said or [Sentence("result", "No change is shown.")],
        latest=max(_date(each.points[-1]) for each in found),
    )


def _date(point: Point) -> str:
    return datetime.fromtimestamp(point.time, UTC).strftime("%Y-%m-%d %H:%M:%S")


def change(point: Point) -> str:
    """A change as text: `regression: 0.82 [0.79, 0.85]`; empty if nothing changed."""
    if point.change is None:
        return ""
    kind = "regression" if point.change.value < 1 else "improvement"
    return f"{kind}: {text.ratio(point.change)}"


def history_sheet(history: History, number: int = 0) -> Sheet:
    """One line per results folder, the oldest first."""
    columns: list[Column[Point]] = [
        Column("Date (UTC)", _date),
        Column("Version", lambda point: point.version),
        Column("Commit", lambda point: point.commit),
        Column(
            f"{history.points[0].unit.capitalize()}/s",
            lambda point: text.stat(point.throughput),
            lambda e: e.throughput,
        ),
        Column("Change", change, lambda point: point.change, left=True),
    ]
    drift = (
        "Fewer than 4 folders do not show how much folders vary without a change, so any drift "
        "between two of them counts as a change."
    )
    changed = history.by_runs and any(point.change for point in history.points)
    return sheet_of(
        f"history-{number}",
        f"{history.name} ({history.hardware})",
        columns,
        history.points,
        (drift,) if changed else (),
        lambda point: "bad" if point.change and point.change.value < 1 else "",
    )


def history_plot(history: History, number: int = 0) -> Plot:
    """Throughput over the folders, ordered by time, with marks where it changed."""
    points: list[Trace] = []
    for each in history.points:
        date, stat = _date(each), each.throughput
        lines = (
            f"{date}, raysuite {each.version} {each.commit}",
            f"{text.stat(stat)} {each.unit}/s",
            change(each),
            each.folder,
        )
        ends = {"low": stat.low, "high": stat.high, "tip": "\n".join(filter(None, lines))}
        points.append({"x": date, "y": stat.mean, **ends})
    changed = {"regression": "#D55E00", "improvement": "#009E73"}
    traces = [p.trace("mean", points, series="throughput")]
    for kind in changed:
        pairs = zip(points, history.points, strict=True)
        if own := [point for point, each in pairs if change(each).startswith(kind)]:
            traces.append(p.trace("change", own, series=kind))
    dates = [point["x"] for point in points]
    axis = p.labels(dates, "date of the first run (UTC)", lying=False)
    axis["axis"] |= {"labelOverlap": True}
    return Plot(
        name=f"history-{number}-plot",
        title=history.name,
        note=f"On {history.hardware}. Bands are 95 % intervals over repeats. A change is "
        "marked if the interval of the throughput after it, divided by that before it, excludes "
        "1; the 95 % level holds for all points together.",
        description=f"A line over {len(dates)} results folders; "
        + (text.listed([change(point) for point in history.points if point.change]) or "no change")
        + ".",
        traces=traces,
        layers=[p.intervals(1), p.line(), p.markers(), p.markers("change", size=140)],
        x=axis,
        y=p.quantity(f"{history.points[0].unit} per second"),
        styles={"throughput": Style(p.COLORS[0])}
        | {each["series"]: Style(changed[each["series"]], symbol="diamond") for each in traces[1:]},
        wide=True,
    )
