"""What all plots share: their form as plain data, their colours, and how names are written.

A plot is plotly's JSON as plain data, so that building one imports no plotly.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
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
    def wide(self) -> bool:
        """Whether it wants the page's whole width."""
        return bool(self.layout.get("grid", {}).get("columns", 1) > 1)

    @property
    def figure(self) -> Figure:
        """plotly's JSON."""
        return {"data": self.traces, "layout": self.layout}


def paler(color: str, share: float) -> str:
    """A colour mixed with that share of white."""
    parts = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)


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
    """Distances to the ends of the 95 % intervals; 0 draws none."""
    known = [stat if stat and stat.low is not None else None for stat in stats]
    above = [((s.high or 0.0) - s.mean) * scale if s else 0.0 for s in known]
    below = [(s.mean - (s.low or 0.0)) * scale if s else 0.0 for s in known]
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "visible": any(above),
        "thickness": 1.5,
        "width": 4,
    }
