"""Keys of a matrix and of a search space as they are written: single, or several together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raysuite.spec.search import holds

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
            return rows  # a mistake, which the check of the matrix reports
        values = [row[place] for place in kept]
        value = values[0] if len(kept) == 1 else values
        if value not in found:
            found.append(value)
    return found


SPACE = "search.space."
"""Its keys are dotted keys, which are not split."""

Search = dict[str, Any]


def set_dimension(search: Any, key: str, dimension: Any) -> Search:
    """The section with another dimension for `key`; without any where `dimension` is None."""
    section = dict(search) if isinstance(search, dict) else {}
    given = section.get("space")
    space = dict(given) if isinstance(given, dict) else {}
    if dimension is None:
        space.pop(key, None)
    else:
        space[key] = dimension
    return {**section, "space": space}


def end_dimension(search: Any, key: str, value: Any) -> Any:
    """The section where `key` has one `value`.

    Conditions on it are decided by that: what they forbid is left out, and where they hold they
    are removed.
    """
    space = search.get("space") if isinstance(search, dict) else None
    if not isinstance(space, dict) or key not in space:
        return search
    left: dict[str, Any] = {}
    for other, dimension in space.items():
        when = dimension.get("when") if isinstance(dimension, dict) else None
        if other == key:
            continue
        if isinstance(when, Mapping) and key in when:
            if not holds({key: when[key]}, {key: value}):
                continue
            rest = {each: wanted for each, wanted in when.items() if each != key}
            dimension = {**dimension, "when": rest}
        left[other] = dimension
    return {**search, "space": left}
