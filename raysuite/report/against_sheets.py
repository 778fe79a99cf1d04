"""The tables of a comparison: lines, what the paper says about itself, what has no counterpart."""

from __future__ import annotations

from collections.abc import Callable

from raysuite.report import text
from raysuite.report.against import QUANTITIES, Basis, Comparison, Line, Measured
from raysuite.report.sheet import Sheet

_BASES: dict[Basis, str] = {"both": "both", "ours": "ours alone", "none": "none"}
_NOTES: dict[Basis, str] = {
    "both": "Intervals of ratios are 95 % confidence intervals from the spread of both sides.",
    "ours": "A published value has no spread: the interval of the ratio is that of ours alone.",
    "none": "No interval where a side has n = 1, a paper states a bound or a range, or the "
    "baselines of two speed-ups or efficiencies differ.",
}


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    """The tables that have anything in them."""
    made = (_lines(comparison), _recomputed(comparison), _unmatched(comparison))
    return [sheet for sheet in made if sheet.cells]


def _lines(comparison: Comparison) -> Sheet:
    bases = dict.fromkeys(line.basis for line in comparison.lines)
    return Sheet(
        name="against",
        title=f"Ours against {comparison.title}",
        header=(
            "Ours",
            "Quantity",
            "Our value",
            "Their value",
            "Ours / theirs",
            "Interval of",
            "Theirs",
            "Notes",
        ),
        cells=tuple(_cells(line) for line in comparison.lines),
        numbers=frozenset(("Our value", "Their value", "Ours / theirs")),
        notes=(*(_NOTES[basis] for basis in bases), *comparison.remarks),
    )


def _cells(line: Line) -> tuple[str, ...]:
    quantity = QUANTITIES[line.quantity]
    bound = f"{line.bound} " if line.bound else ""
    return (
        line.ours_name,
        quantity.title,
        _value(line.ours, quantity.write),
        bound + _value(line.theirs, quantity.write),
        text.ratio(line.ratio),
        _BASES[line.basis],
        ", ".join(filter(None, (line.theirs_name, line.source))),
        "; ".join(line.notes),
    )


def _value(value: Measured, write: Callable[[float], str]) -> str:
    if value.high is None:
        return write(value.value)
    if value.low is None:  # a range, as a paper states it
        return f"{write(value.value)} to {write(value.high)}"
    return f"{write(value.value)} [{write(value.low)}, {write(value.high)}]"


def _recomputed(comparison: Comparison) -> Sheet:
    return Sheet(
        name="against-recomputed",
        title="What the paper states, beside what follows from its other statements",
        header=("What", "Stated", "Recomputed", "From"),
        cells=tuple((e.name, e.stated, e.recomputed, e.how) for e in comparison.recomputed),
        numbers=frozenset(("Recomputed",)),
    )


def _unmatched(comparison: Comparison) -> Sheet:
    return Sheet(
        name="against-unmatched",
        title="Without a counterpart",
        header=("What", "Side", "Why"),
        cells=tuple((each.name, each.side, each.reason) for each in comparison.unmatched),
    )
