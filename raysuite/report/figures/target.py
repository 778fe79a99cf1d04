"""Throughput beside time to accuracy: what is fast by the second need not be done first."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records import Row
from raysuite.report import text
from raysuite.report.facets import shared, telling, written
from raysuite.report.figures.panels import panelled
from raysuite.report.figures.points import Figure, details, middle, whiskers
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import Plot, Trace, folded

BAR_HEIGHT = 22


def time_to_accuracy(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Both, one bar per variant; None where no spec set a target."""
    shown = [
        row for row in rows if row.throughput and row.counted and row.counted[0].target_accuracy
    ]
    if not shown:
        return None
    names = telling(shown)
    rate = _bars(shown, names, styles, lambda row: row.throughput, _images)
    wait = _bars(shown, names, styles, lambda row: row.time_to_accuracy, text.seconds)
    missed = [0 if row.time_to_accuracy else len(row.counted) - row.target_met for row in shown]
    rate["name"], wait["name"] = "throughput", "time to accuracy"
    wait["text"] = ["not met" if count else "" for count in missed]
    wait["textposition"] = "outside"
    wait["cliponaxis"] = False
    for row, count, hover in zip(shown, missed, wait["customdata"], strict=True):
        if count:
            hover[1] = f"target met by {row.target_met} of {len(row.counted)} runs"
    targets = sorted({run.target_accuracy or 0.0 for row in shown for run in row.counted})
    said = shared(shown)
    return panelled(
        name="time-to-accuracy",
        title="Throughput and time to accuracy" + (f" – {said}" if said else ""),
        note=f"Target: {text.listed([text.percent(each) for each in targets])}. Time counts from "
        "before the first sample; there is none unless every repeat met the target. Its "
        "resolution is an epoch, as validation comes after each.",
        description=f"{sum(not count for count in missed)} of {len(shown)} variants met it.",
        panels={"images per second": [rate], "seconds to the target accuracy": [wait]},
        columns=2,
        x={"rangemode": "tozero"},
        y={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [folded(written(row, names) or row.name) for row in shown],
            "autorange": "reversed",
            "automargin": True,
        },
        height=90 + BAR_HEIGHT * len(shown),
        extra={"bargap": 0.3, "showlegend": False},
    )


def _images(value: float) -> str:
    return f"{text.number(value)} images/s"


def _bars(
    rows: Sequence[Row],
    names: Sequence[str],
    styles: Styles,
    figure: Figure,
    write: text.Writer,
) -> Trace:
    values = [figure(row) for row in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "",
        "y": [folded(written(row, names) or row.name) for row in rows],
        "x": [middle(value) for value in values],
        "error_x": whiskers(values),
        "marker": {"color": [styles.color(row, names) for row in rows]},
        **details(rows, figure, write),
    }
