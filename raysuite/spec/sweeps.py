"""The matrix as it is written: dotted keys, or several that go together, and their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Matrix = dict[str, Any]


def swept_keys(written: str) -> tuple[str, ...]:
    """The dotted keys of one line of a matrix: `data.name, training.global_batch` is two."""
    return tuple(key.strip() for key in written.split(","))


def end_sweeps(matrix: Matrix, keys: Iterable[str]) -> Matrix:
    """The matrix without sweeps of `keys`.

    Keys that were swept together with one of them continue without it; equal values that come of
    that count once.
    """
    ended = set(keys)
    left: Matrix = {}
    for written, values in matrix.items():
        together = swept_keys(str(written))
        kept = [place for place, key in enumerate(together) if key not in ended]
        if len(kept) == len(together):
            left[written] = values
        elif kept:
            left[", ".join(together[place] for place in kept)] = _columns(values, kept)
    return left


def _columns(rows: Any, kept: list[int]) -> Any:
    """The values at the places `kept` of each row, each combination once; rows alone are values."""
    found: list[Any] = []
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, list) or len(row) <= kept[-1]:
            return rows  # a mistake, which the check of the matrix tells
        values = [row[place] for place in kept]
        value = values[0] if len(kept) == 1 else values
        if value not in found:
            found.append(value)
    return found
