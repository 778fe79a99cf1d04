"""Files of a report as cells: what stands in which row and column."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

Cells = list[tuple[str, str, Any]]
"""Row, column, and what stands there."""


def cells_of(name: str, content: str) -> Cells:
    """The cells of a file, by the end of its name."""
    suffix = name.rpartition(".")[2]
    return list(_READERS[suffix](content))


def json_cells(data: Any, row: str = "", column: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every value of plain data; an entry of a list that has a name is a row of its own."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from json_cells(value, row, f"{column}.{key}" if column else str(key))
    elif isinstance(data, list):
        yield row, f"{column}.length", len(data)
        for place, value in enumerate(data):
            if not row and isinstance(value, dict) and "name" in value:
                yield from json_cells(value, f"{column}[{place}] {value['name']}")
            else:
                yield from json_cells(value, row, f"{column}[{place}]")
    else:
        yield row, column, data


def _json(content: str) -> Iterator[tuple[str, str, Any]]:
    yield from json_cells(json.loads(content))


def _csv(content: str) -> Iterator[tuple[str, str, Any]]:
    header, *lines = csv.reader(io.StringIO(content))
    for number, line in enumerate(lines, start=2):
        row = f"{line[0] if line else ''} (line {number})"
        for place, cell in enumerate(line):
            yield row, header[place] if place < len(header) else str(place), cell


def _split(content: str, between: str) -> Iterator[tuple[str, str, Any]]:
    """Lines whose cells stand between marks; the first such line of a block is its header."""
    header: list[str] = []
    for number, line in enumerate(content.splitlines(), start=1):
        parts = [part.strip() for part in re.split(between, line)]
        if len(parts) == 1:
            header = header if r"\midrule" in line else []
            yield f"line {number}", "text", line
            continue
        header = header or parts
        for place, part in enumerate(parts):
            column = header[place] if place < len(header) else str(place)
            yield f"{parts[0] or parts[1]} (line {number})", column, part


def _markdown(content: str) -> Iterator[tuple[str, str, Any]]:
    yield from _split(content, r"(?<!\\)\|")


def _latex(content: str) -> Iterator[tuple[str, str, Any]]:
    yield from _split(content, r"(?<!\\)&|\\\\$")


def _lines(content: str) -> Iterator[tuple[str, str, Any]]:
    for number, line in enumerate(content.splitlines(), start=1):
        yield f"line {number}", "text", line


class _Page(HTMLParser):
    """Cells of all tables with their values to sort by, entries of lists, and the plots' data."""

    CELLS = ("th", "td", "li", "dd")

    def __init__(self) -> None:
        super().__init__()
        self.cells: Cells = []
        self.figures = ""
        self._section = ""
        self._header: list[str] = []
        self._line: list[str] = []
        self._row = ""
        self._text: list[str] | None = None
        self._in_head = False
        self._in_figures = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self._section = given.get("id") or ""
        elif tag == "table":
            self._header = []
        elif tag == "thead":
            self._in_head = True
        elif tag == "tr":
            self._line = []
        elif tag == "script":
            self._in_figures = given.get("id") == "figures"
        elif tag in self.CELLS:
            self._text = []
            if (value := given.get("data-value")) is not None:
                row = self._line[0] if self._line else value
                self._add(row, f"{self._column()} (value)", value)

    def handle_endtag(self, tag: str) -> None:
        if tag == "thead":
            self._in_head = False
        elif tag == "script":
            self._in_figures = False
        elif tag in self.CELLS and self._text is not None:
            text = " ".join("".join(self._text).split())
            self._text = None
            if tag in ("li", "dd"):
                if self._section:  # not the list of sections itself
                    self._add(tag, "", text)
                return
            column = self._column()
            self._line.append(text)
            if self._in_head:
                self._header.append(text)
            else:
                self._add(self._line[0], column, text)

    def handle_data(self, data: str) -> None:
        if self._in_figures:
            self.figures += data
        elif self._text is not None:
            self._text.append(data)

    def _column(self) -> str:
        place = len(self._line)
        return self._header[place] if place < len(self._header) else str(place)

    def _add(self, row: str, column: str, value: str) -> None:
        self.cells.append((f"#{self._section}: {row}", column, value))


def _page(content: str) -> Iterator[tuple[str, str, Any]]:
    page = _Page()
    # without the page's own scripts, plotly.js among them: megabytes that hold no figure
    page.feed(re.sub(r"<script>.*?</script>", "", content, flags=re.DOTALL))
    yield from page.cells
    for name, figure in (json.loads(page.figures) if page.figures else {}).items():
        for number, trace in enumerate(figure["data"]):
            yield from json_cells(trace, f"plot {name}: {trace.get('name', number)}", "data")


_READERS = {
    "json": _json,
    "csv": _csv,
    "md": _markdown,
    "tex": _latex,
    "html": _page,
    "yaml": _lines,
}


def equal(written: Any, recomputed: Any, relative: float = 1e-9) -> bool:
    """Whether two cells say the same; numbers may differ in the last digits of a float."""
    if isinstance(written, bool) or isinstance(recomputed, bool):
        return written is recomputed
    if isinstance(written, int | float) and isinstance(recomputed, int | float):
        return math.isclose(written, recomputed, rel_tol=relative, abs_tol=1e-15)
    if isinstance(written, list) and isinstance(recomputed, list):
        pairs = zip(written, recomputed, strict=False)
        return len(written) == len(recomputed) and all(equal(a, b, relative) for a, b in pairs)
    return bool(written == recomputed)
