"""Two of one's own studies side by side, variant by variant."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from raysuite.records import Ratio, Row, Stat, ratio_of_means
from raysuite.records.names import dotted
from raysuite.report.against import Basis, Comparison, Line, Measured, Unmatched, row_figures

MOST_DIFFERENCES = 4
"""Options that a line names where two variants differ in more."""


def against_study(rows: Sequence[Row], others: Sequence[Row], asked: str, title: str) -> Comparison:
    """Rows of one study beside those of another.

    Variants match that are equal in strategy, loader, model with its options, data set and number
    of workers; among several, those that have most other options in common. What differs is told
    with each line.
    """
    pairs, left, right = _pairs(rows, others)
    unmatched = [
        Unmatched("ours", row.name, "the other study has no such variant") for row in left
    ] + [Unmatched("theirs", row.name, "this study has no such variant") for row in right]
    lines = []
    for ours, theirs in pairs:
        found = list(_lines(ours, theirs, _same_baseline(ours, theirs, rows, others)))
        lines += found
        if not found:
            unmatched.append(Unmatched("ours", ours.name, "one side has no figures"))
    return Comparison(asked, title, tuple(lines), tuple(unmatched))


def _pairs(
    rows: Sequence[Row], others: Sequence[Row]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    scored = sorted(
        (
            (-len(_differences(ours, theirs)), -i, -j)
            for i, ours in enumerate(rows)
            for j, theirs in enumerate(others)
            if _key(ours) == _key(theirs)
        ),
        reverse=True,
    )
    matched: dict[int, int] = {}
    for _, i, j in scored:
        if -i not in matched and -j not in matched.values():
            matched[-i] = -j
    pairs = [(rows[i], others[j]) for i, j in sorted(matched.items())]
    left = [row for i, row in enumerate(rows) if i not in matched]
    right = [row for j, row in enumerate(others) if j not in matched.values()]
    return pairs, left, right


def _key(row: Row) -> tuple[str, str, str, str, int]:
    spec = row.runs[0].plan["spec"]
    model = json.dumps(spec["model"], sort_keys=True)
    return spec["strategy"]["name"], spec["loader"]["name"], model, row.work, row.workers


def _differences(ours: Row, theirs: Row) -> list[str]:
    """Options in which two variants differ, with both values."""
    left, right = (_options(row.runs[0].plan["spec"]) for row in (ours, theirs))
    left["device"], right["device"] = ours.device, theirs.device
    return [
        f"{key} {json.dumps(left.get(key))}, theirs {json.dumps(right.get(key))}"
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
    ]


def _options(spec: dict[str, Any]) -> dict[str, Any]:
    left_out = ("name", "description", "seed", "repeats", "matrix")
    return dict(dotted({key: value for key, value in spec.items() if key not in left_out}))


def _same_baseline(ours: Row, theirs: Row, rows: Sequence[Row], others: Sequence[Row]) -> bool:
    """Whether the speed-ups of both are against variants that match."""
    left = next((row for row in rows if row.name == ours.baseline), None)
    right = next((row for row in others if row.name == theirs.baseline), None)
    return left is not None and right is not None and _key(left) == _key(right)


def _lines(ours: Row, theirs: Row, same_baseline: bool) -> Iterator[Line]:
    told = _told(_differences(ours, theirs))
    apart = f"baseline {ours.baseline}, theirs {theirs.baseline}"
    for quantity, left in row_figures(ours).items():
        right = row_figures(theirs)[quantity]
        if left is None or right is None:
            continue
        comparable = same_baseline or isinstance(left, Stat)
        ratio, basis = _ratio(left, right) if comparable else (None, "none")
        yield Line(
            quantity=quantity,
            ours_name=ours.name,
            ours=Measured.of(left),
            theirs_name=theirs.name,
            theirs=Measured.of(right),
            ratio=ratio,
            basis=basis,
            notes=told if comparable else (apart, *told),
        )


def _told(differences: Sequence[str]) -> tuple[str, ...]:
    more = len(differences) - MOST_DIFFERENCES
    rest = (f"{more} more options differ",) if more > 0 else ()
    return (*differences[:MOST_DIFFERENCES], *rest)


def _ratio(ours: Stat | Ratio, theirs: Stat | Ratio) -> tuple[Ratio | None, Basis]:
    if isinstance(ours, Stat) and isinstance(theirs, Stat):
        ratio = ratio_of_means(ours, theirs)
    elif isinstance(ours, Ratio) and isinstance(theirs, Ratio):
        ratio = ratio_of_ratios(ours, theirs)
    else:
        raise TypeError("a mean and a ratio do not compare")
    return ratio, "none" if ratio is None or ratio.low is None else "both"


def ratio_of_ratios(above: Ratio, below: Ratio) -> Ratio | None:
    """The ratio of two independent ratios, with an interval from both of theirs.

    On the logarithm, the distances from estimate to limits add up in squares (MOVER: Zou and Donner
    2008, Statistics in Medicine 27:1693, equations 3 and 4). None where it is not defined.
    """
    if above.value <= 0 or below.value <= 0:
        return None
    value = above.value / below.value
    ends = (above.low, above.high, below.low, below.high)
    if None in ends:
        return Ratio(value, None, None)
    low_above, high_above, low_below, high_below = (float(end or 0.0) for end in ends)
    if min(low_above, low_below) <= 0 or math.isinf(max(high_above, high_below)):
        return Ratio(value, 0.0, math.inf)
    down = math.hypot(math.log(above.value / low_above), math.log(high_below / below.value))
    up = math.hypot(math.log(high_above / above.value), math.log(below.value / low_below))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))
