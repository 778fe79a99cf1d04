"""Rows as tables for people: one list of columns for the terminal, Markdown and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from raysuite.records import Ratio, Row, Stat
from raysuite.records.metrics import METRICS, Metric
from raysuite.report import text

Line = TypeVar("Line")


@dataclass(frozen=True)
class Column(Generic[Line]):
    """One column for people: its title, and of a row its text and the value to sort by."""

    title: str
    write: Callable[[Line], str]
    value: Callable[[Line], float | str | None]
    number: bool = True


def mean(figure: Stat | None) -> float | None:
    """What a column of figures is sorted by."""
    return None if figure is None else figure.mean


def _gate(row: Row) -> str:
    if row.status == "finished" or (row.gate == "failed" and len(row.runs) == 1):
        return row.gate
    if row.gate == "not checked" and row.status == "missing":
        return row.status
    return f"{row.gate}; run {row.status}" if len(row.runs) == 1 else f"{row.gate}; {row.status}"


def _time_to_accuracy(row: Row) -> str:
    if row.time_to_accuracy is None and row.counted and row.counted[0].target_accuracy:
        return f"met by {row.target_met} of {len(row.counted)}"
    if row.time_to_accuracy is None or row.epochs_to_accuracy is None:
        return text.NONE
    # a time has the resolution of an epoch: of a single run it is no pace
    epochs = f"{row.epochs_to_accuracy.mean:.3g} epochs"
    return f"{text.stat(row.time_to_accuracy, text.seconds)}, {epochs}"


def _throughput(row: Row) -> str:
    return text.stat(row.throughput) + (" (diverged)" if row.diverged else "")


def _point(ratio: Ratio | None, baseline: str | None) -> str:
    return text.NONE if ratio is None else baseline or f"{ratio.value:.2f}"


def _efficiency(row: Row) -> str:
    return text.ratio(row.efficiency) + (" (above 1)" if row.superlinear else "")


_SPECIAL: dict[str, Callable[[Row], str]] = {
    "throughput": _throughput,
    "time_to_accuracy": _time_to_accuracy,
}
"""Columns that say more than a metric's value."""


def _column(metric: Metric) -> Column[Row]:
    def write(row: Row) -> str:
        return text.stat(row.figures[metric.name], text.WRITERS[metric.unit], single="")

    return Column(
        metric.title,
        _SPECIAL.get(metric.name, write),
        lambda row: mean(row.figures[metric.name]),
    )


_RATIOS: tuple[Column[Row], ...] = (
    Column(
        "Speed-up",
        lambda r: "baseline" if r.is_baseline and r.speed_up else text.ratio(r.speed_up),
        lambda r: r.speed_up.value if r.speed_up else None,
    ),
    Column(
        "Efficiency",
        lambda r: "1" if r.is_baseline and r.efficiency else _efficiency(r),
        lambda r: r.efficiency.value if r.efficiency else None,
    ),
)

COLUMNS: tuple[Column[Row], ...] = (
    Column("Variant", lambda r: r.name, lambda r: r.name, number=False),
    Column("Gate", _gate, _gate, number=False),
    *(
        column
        for metric in METRICS
        if metric.table == "variants"
        for column in (_column(metric), *(_RATIOS if metric.name == "throughput" else ()))
    ),
)


def columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """The columns that say something of these rows: no device memory where no row has a device."""
    optional = {
        "Device memory": any(row.peak_device_bytes for row in rows),
        "Time to accuracy": any(run.target_accuracy for row in rows for run in row.runs),
    }
    return tuple(column for column in COLUMNS if optional.get(column.title, True))


NARROW = 140
"""Columns of a terminal below which the table is cut to what matters most."""

_SHORT: dict[str, Callable[[Row], str]] = {
    "Variant": COLUMNS[0].write,
    "Gate": COLUMNS[1].write,
    "Images/s": lambda r: text.stat(r.throughput),
    "Speed-up": lambda r: _point(r.speed_up, "baseline" if r.is_baseline else None),
    "Efficiency": lambda r: _point(r.efficiency, "1" if r.is_baseline else None),
    "Accuracy": lambda r: text.mean(r.final_accuracy, text.percent),
}


def terminal_table(rows: Sequence[Row], width: int = NARROW) -> Table:
    """The rows for a terminal of `width` columns; what is wrong is red."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    shown = columns(rows)
    if width < NARROW:
        hidden = [column.title for column in shown if column.title not in _SHORT]
        if hidden:
            table.caption = f"hidden below {NARROW} columns: {', '.join(hidden)}"
        shown = tuple(
            replace(column, write=_SHORT[column.title])
            for column in shown
            if column.title in _SHORT
        )
    for column in shown:
        table.add_column(column.title, justify="right" if column.number else "left")
    for row in rows:
        style = "red" if row.gate == "failed" else "yellow" if row.throughput is None else ""
        # Text: a name in brackets is no markup
        table.add_row(*(Text(column.write(row)) for column in shown), style=style)
    return table


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(columns(rows), rows)


def markdown_table(shown: Sequence[Column[Line]], rows: Sequence[Line]) -> str:
    """The columns of the rows as a Markdown table."""
    lines = [
        "| " + " | ".join(column.title for column in shown) + " |",
        "| " + " | ".join("---:" if column.number else "---" for column in shown) + " |",
    ]
    for row in rows:
        lines.append("| " + " | ".join(markdown_text(column.write(row)) for column in shown) + " |")
    return "\n".join(lines) + "\n"


def markdown_text(content: str) -> str:
    """Text that Markdown shows as it is, in a table or a line."""
    for character, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        content = content.replace(character, safe)
    return content
