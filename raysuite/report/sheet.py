"""A table as text, and as CSV and Markdown: what every table of a report has in common."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from raysuite.report.tables import markdown_text


@dataclass(frozen=True)
class Sheet:
    """One table whose cells are written out, units included."""

    name: str
    """Part of file names and labels: letters, digits and dashes."""
    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    """One tuple a line, as long as the header; the first cell names the line."""
    numbers: frozenset[str] = frozenset()
    """Titles of the columns that are set flush right."""
    notes: tuple[str, ...] = ()
    """What a reader must know: the baseline, n, where the intervals come from."""


def csv_sheet(sheet: Sheet) -> str:
    """As CSV, without the notes."""
    return csv_lines([sheet.header, *sheet.cells])


def csv_lines(lines: Sequence[Sequence[object]]) -> str:
    """Lines of values as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()


def markdown_sheet(sheet: Sheet) -> str:
    """As a Markdown table under its title, with the notes behind it."""
    marks = ["---:" if title in sheet.numbers else "---" for title in sheet.header]
    lines = [_line(map(markdown_text, sheet.header)), _line(marks)]
    lines += [_line(map(markdown_text, cells)) for cells in sheet.cells]
    notes = [f"- {markdown_text(note)}" for note in sheet.notes]
    return "\n".join([f"## {markdown_text(sheet.title)}", "", *lines, "", *notes, ""])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def terminal_sheet(sheet: Sheet, without: Collection[str] = ()) -> Table:
    """For a terminal, without the columns of those titles."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [place for place, title in enumerate(sheet.header) if title not in without]
    for title in (sheet.header[place] for place in shown):
        table.add_column(title, justify="right" if title in sheet.numbers else "left")
    for cells in sheet.cells:
        # Text: a name in brackets is no markup
        table.add_row(*(Text(cells[place]) for place in shown))
    return table
