"""What all plots share: their form as plain data, and the look of a variant in every one of them.

A plot is plotly's JSON as plain data, so that building one imports no plotly.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysuite.records import Row, Stat

# Okabe and Ito 2008, "Color Universal Design": told apart with every kind of colour vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
NEUTRAL = "#8A8F98"

Figure = dict[str, Any]
Trace = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """One plot of the page."""

    name: str
    """Part of file names and of the page's anchors."""
    title: str
    note: str
    """How to read it, in a sentence or two."""
    description: str
    """What it shows, for those who do not see it."""
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)

    @property
    def figure(self) -> Figure:
        """plotly's JSON."""
        return {"data": self.traces, "layout": self.layout}


class Look:
    """Colour by strategy, dash by loader, symbol by what else differs: the same in every plot."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._strategies = _distinct(row.strategy for row in rows)
        self._loaders = _distinct(row.loader for row in rows)
        self._rests = _distinct(_rest(row) for row in rows)
        self._workers = sorted({row.workers for row in rows})

    def color(self, row: Row) -> str:
        """The strategy's colour."""
        return COLORS[self._strategies.index(row.strategy) % len(COLORS)]

    def shade(self, row: Row) -> str:
        """In plots with one line per variant: the strategy's colour, paler for fewer workers."""
        place = self._workers.index(row.workers)
        if len(self._strategies) == 1:  # then the number of workers has the colours to itself
            return COLORS[place % len(COLORS)]
        return _paler(self.color(row), 0.5 * (1 - (place + 1) / len(self._workers)))

    def dash(self, row: Row) -> str:
        """The loader's dash."""
        return DASHES[self._loaders.index(row.loader) % len(DASHES)]

    def symbol(self, row: Row) -> str:
        """The symbol of the other options."""
        return SYMBOLS[self._rests.index(_rest(row)) % len(SYMBOLS)]

    def worker_symbol(self, row: Row) -> str:
        """The symbol of the number of workers, in plots with one line per variant."""
        return SYMBOLS[self._workers.index(row.workers) % len(SYMBOLS)]

    def series_line(self, row: Row) -> Trace:
        """Line and markers of a series over workers."""
        color = self.color(row)
        return {
            "mode": "lines+markers",
            "line": {"color": color, "dash": self.dash(row), "width": 2},
            "marker": {"color": color, "symbol": self.symbol(row), "size": 8},
        }


def _paler(color: str, share: float) -> str:
    parts = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)


def _rest(row: Row) -> str:
    return row.series.removeprefix(f"{row.strategy} · {row.loader}")


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def key(row: Row) -> list[Any]:
    """What the page's filters look at: strategy, loader, workers, name."""
    return [row.strategy, row.loader, row.workers, row.name]


def safe(name: str) -> str:
    """A name as plotly shows it: plotly reads a subset of HTML in every text."""
    return html.escape(name, quote=False)


def folded(name: str, width: int = 44) -> str:
    """A long name over several lines, for an axis."""
    return "<br>".join(safe(line) for line in textwrap.wrap(name, width) or [""])


def error_bar(stats: Sequence[Stat | None], scale: float = 1.0) -> dict[str, Any]:
    """Half-widths of the 95 % intervals; 0 draws none. No whisker goes below zero."""
    widths = [(stat.half_width or 0.0) * scale if stat else 0.0 for stat in stats]
    means = [stat.mean * scale if stat else 0.0 for stat in stats]
    return {
        "type": "data",
        "symmetric": False,
        "array": widths,
        "arrayminus": [min(width, mean) for width, mean in zip(widths, means, strict=True)],
        "visible": any(widths),
        "thickness": 1.5,
        "width": 4,
    }
