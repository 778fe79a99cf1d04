"""Sets of time as sorted, disjoint intervals [begin, end) of whole nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

Interval = tuple[int, int]
Intervals = list[Interval]
"""Sorted and disjoint, none of them empty, no two of them touching."""


def union(*sets: Iterable[Interval]) -> Intervals:
    """What any of the intervals covers; they may come in any order and overlap."""
    merged: Intervals = []
    for begin, end in sorted(chain.from_iterable(sets)):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def minus(whole: Intervals, *others: Intervals) -> Intervals:
    """What `whole` covers and none of the others does."""
    taken = union(*others)
    left: Intervals = []
    place = 0
    for begin, end in whole:
        while place < len(taken) and taken[place][1] <= begin:
            place += 1
        at = place
        while at < len(taken) and taken[at][0] < end:
            if taken[at][0] > begin:
                left.append((begin, taken[at][0]))
            begin = max(begin, taken[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left


def within(whole: Intervals, window: Interval) -> Intervals:
    """The part that lies in the window."""
    first, last = window
    cut = [(max(begin, first), min(end, last)) for begin, end in whole]
    return [(begin, end) for begin, end in cut if begin < end]


def seconds(whole: Intervals) -> float:
    """How much time the intervals cover."""
    return sum(end - begin for begin, end in whole) / 1e9
