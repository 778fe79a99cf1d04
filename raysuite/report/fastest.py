"""Which variant is the fastest of those that do the same work, where the intervals show one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raysuite.records import Row
from raysuite.records.names import work_key, work_names, workers_name
from raysuite.records.statistics import compared
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
    # what is said of all groups is to hold together (Bonferroni)
    level = 1 - 0.05 / max(1, sum(len(_repeated(group)) > 1 for group in groups.values()))
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
        said.append(Sentence("result", f"{place}: {_best_of(group, level)}"))
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


def _repeated(group: Sequence[Row]) -> list[Row]:
    return [row for row in group if row.throughput and row.throughput.n > 1]


def _best_of(group: Sequence[Row], level: float) -> str:
    short = _short_names(group)
    best = max(group, key=_throughput)
    others = [row for row in group if row is not best]
    said = f"{short[best.name]} at {text.stat(best.throughput, single='')} images/s"
    if not others:
        return f"{said}, the only variant with a speed here."
    said = f"the highest mean throughput is {said}."
    beaten = slower_than(best, _repeated(group), level)
    slower = [row for row in others if row.key in beaten]
    close = sorted((row for row in others if row.key not in beaten), key=_throughput, reverse=True)
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


def slower_than(best: Row, rows: Sequence[Row], level: float) -> set[str]:
    """The keys of the variants that `best` is shown to be faster than. It is chosen among several
    after the fact, so all pairs of them have to hold together."""
    stats = [row.throughput for row in rows if row.throughput]
    keys = [row.key for row in rows]
    if best.key not in keys or len(keys) < 2:
        return set()
    ratios, reaches = compared(stats, level)
    place = keys.index(best.key)
    return {key for key, low in zip(keys, (ratios - reaches)[place], strict=True) if low > 0}


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
