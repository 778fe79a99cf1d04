"""Which variant is the fastest of those that do the same work, where the intervals show one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raysuite.records import Row, ratio_of_means
from raysuite.records.names import work_key, work_names, workers_name
from raysuite.report import text

MOST_GROUPS = 8
SEPARATOR = " · "
"""Between the parts of a name."""
NO_INTERVAL = "n = 1: no interval; differences are not shown to be more than noise."


@dataclass(frozen=True)
class Sentence:
    """One statement: a result, a caveat to read it with, or a problem."""

    kind: Literal["result", "caveat", "problem"]
    text: str


def fastest(rows: Sequence[Row]) -> list[Sentence]:
    """The best of each group of variants that do the same work on as many workers."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.throughput is not None:
            groups.setdefault((work_key(row.runs[0].plan), row.workers), []).append(row)
    names = work_names(row.runs[0].plan for group in groups.values() for row in group)
    several_works = len({work for work, _ in groups}) > 1
    said, alone = [], 0
    for (work, workers), group in sorted(
        groups.items(), key=lambda each: (names[each[0][0]], each[0][1])
    ):
        if len(group) == 1 and len(groups) > 1:
            alone += 1
            continue
        place = (
            f"{names[work]}, {workers_name(workers)}" if several_works else workers_name(workers)
        )
        said.append(Sentence("result", f"{place}: {_best_of(group)}"))
    rest = len(said) - MOST_GROUPS
    said = said[:MOST_GROUPS]
    if rest > 0:
        said.append(Sentence("caveat", f"{rest} more groups are in the table."))
    if alone:
        said.append(Sentence("result", _without_others(alone, len(groups))))
    return said


def _without_others(alone: int, groups: int) -> str:
    """Why nothing is called the fastest where nothing else does the same work."""
    which = "each of the" if alone == groups else f"{alone} of the"
    return (
        f"In {which} {groups} groups of the same network, data and number of workers there is one "
        "variant with a speed, and nothing to compare it with: the table and the plots tell it."
    )


def _best_of(group: Sequence[Row]) -> str:
    short = _short_names(group)
    best = max(group, key=_throughput)
    others = [row for row in group if row is not best]
    said = f"{short[best.name]} at {text.stat(best.throughput, single='')} images/s"
    if not others:
        return f"{said}, the only variant with a speed here."
    said = f"the highest mean throughput is {said}."
    # The best is chosen among several after the fact: each of its comparisons has to stand at a
    # stricter level for all of them to hold together at 95 % (Bonferroni).
    level = 1 - 0.05 / len(others)
    slower: list[Row] = []
    close: list[Row] = []
    for row in sorted(others, key=_throughput, reverse=True):
        assert best.throughput is not None
        assert row.throughput is not None
        ratio = ratio_of_means(best.throughput, row.throughput, level)
        (slower if ratio is not None and ratio.differs_from_one else close).append(row)
    if all(row.throughput is not None and row.throughput.n == 1 for row in group):
        return f"{said} {NO_INTERVAL}"
    if not close:
        subject = "the other variant" if len(others) == 1 else f"all {len(others)} others"
        return f"{said} It is faster than {subject} (95 % confidence)."
    names = text.listed([short[row.name] for row in close])
    if not slower:
        return f"{said} It is not shown to differ from {names}."
    return (
        f"{said} It is faster than {len(slower)} of the {len(others)} others (95 % confidence), "
        f"and not shown to differ from {names}."
    )


def _short_names(group: Sequence[Row]) -> dict[str, str]:
    """Names without the parts that are the same in all of them, where several are told apart."""
    parts = {row.name: row.name.split(SEPARATOR) for row in group}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    return {
        name: SEPARATOR.join(part for part in own if part not in shared) or name
        for name, own in parts.items()
    }


def _throughput(row: Row) -> float:
    return row.throughput.mean if row.throughput else 0.0
