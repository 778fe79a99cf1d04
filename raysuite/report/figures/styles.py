"""Colours, dashes and symbols by facet: the same in every figure of a report."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records import Row
from raysuite.report.facets import facets, written
from raysuite.report.plot import COLORS, DASHES, SYMBOLS, Trace, paler


class Styles:
    """The first facet of a legend has the colour, the second the dash, the others the symbol."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._values: dict[str, list[str]] = {}
        for row in rows:
            for name, value in facets(row).items():
                known = self._values.setdefault(name, [])
                if value not in known:
                    known.append(value)

    def color(self, row: Row, names: Sequence[str]) -> str:
        """The colour of the first facet; of the strategy where there is none."""
        return COLORS[self._place(row, names[0] if names else "strategy") % len(COLORS)]

    def shade(self, row: Row, names: Sequence[str], legend: Sequence[str]) -> str:
        """For bars, which have neither dash nor symbol: paler with each further entry of `legend`
        in the same colour."""
        color = self.color(row, names)
        first = written(row, names[:1])
        alike = [entry for entry in legend if entry.startswith(first)]
        place = alike.index(written(row, names)) if len(alike) > 1 else 0
        return paler(color, 0.6 * place / max(1, len(alike)))

    def line(self, row: Row, names: Sequence[str]) -> Trace:
        """Line and markers of a series."""
        color = self.color(row, names)
        places = [self._place(row, name) for name in names]
        symbol = sum(places[2:]) if len(places) > 2 else sum(places[:1])
        return {
            "mode": "lines+markers",
            "line": {"color": color, "dash": self._dash(row, names), "width": 2},
            "marker": {"color": color, "symbol": SYMBOLS[symbol % len(SYMBOLS)], "size": 7},
        }

    def curve(self, row: Row, names: Sequence[str]) -> Trace:
        """One of many curves without markers: paler by the third facet, such as fewer workers."""
        color = self.color(row, names)
        symbol = 0
        if len(names) > 2:
            symbol = self._place(row, names[2])
            color = paler(color, 0.5 * (1 - (symbol + 1) / len(self._values[names[2]])))
        return {
            "line": {"color": color, "dash": self._dash(row, names), "width": 1.8},
            "marker": {"color": color, "symbol": SYMBOLS[symbol % len(SYMBOLS)], "size": 6},
        }

    def _dash(self, row: Row, names: Sequence[str]) -> str:
        return DASHES[self._place(row, names[1]) % len(DASHES)] if len(names) > 1 else "solid"

    def _place(self, row: Row, name: str) -> int:
        value = facets(row).get(name)
        return self._values[name].index(value) if value is not None else 0
