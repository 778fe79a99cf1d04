"""Axes of parallel coordinates: where a value stands between 0 and 1, and the axis's ticks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysuite.records.names import key_name
from raysuite.report.sweep.study import TOLD, Study, value_text

ABSENT = -0.12
"""Where a trial stands that has no value there: a key whose condition does not hold."""
NOT_SET = "unset"
SHORT = 11
"""Letters of a tick; longer ones are cut."""


@dataclass(frozen=True)
class Axis:
    """One upright axis: a title, ticks, and the place of each trial; None: it has none."""

    title: str
    places: dict[int, float | None]
    """Number of a trial -> where it stands, in [0, 1] or ABSENT."""
    ticks: tuple[tuple[float, str], ...]


def key_axis(study: Study, key: str) -> Axis:
    """The axis of a searched key: logarithmic where it was drawn so; names stand side by side."""
    values = {each.number: each.values[key] for each in study.trials if key in each.values}
    absent = [each.number for each in study.trials if key not in each.values]
    kind = study.kind(key)
    if kind in ("choice", "grid") or not all(map(is_number, values.values())):
        places, ticks = _names(values, study.listed(key))
    else:
        places, ticks = _numbers(values, log="log" in kind)
    whole: dict[int, float | None] = {**places, **dict.fromkeys(absent, ABSENT)}
    below = ((ABSENT, NOT_SET),) if absent else ()
    return Axis(key_name(key), whole, (*below, *ticks))


def goal_axis(study: Study) -> Axis:
    """The axis of the first goal, its best on top."""
    goal = study.goal
    told = TOLD[goal]
    values = {t.number: v for t in study.trials if t.counts and (v := t.goals[goal]) is not None}
    without = dict.fromkeys((t.number for t in study.trials if t.number not in values), None)
    places, ticks = _numbers(values, log=False)
    if goal == "time_to_accuracy":
        places = {number: 1 - place for number, place in places.items()}
        ticks = tuple((1 - place, said) for place, said in ticks)
    if goal == "accuracy":
        ticks = tuple((place, f"{100 * float(said):.4g} %") for place, said in ticks)
    titles = {"accuracy": "accuracy", "time_to_accuracy": "time to accuracy [s]"}
    return Axis(titles.get(goal, told.axis), {**places, **without}, ticks)


def is_number(value: Any) -> bool:
    """Whether it can stand on a line of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _names(
    values: dict[int, Any], listed: Sequence[Any]
) -> tuple[dict[int, float], tuple[tuple[float, str], ...]]:
    """Numbers in their order, other values in that of the spec; those that no trial had go."""
    distinct = {_written(value): value for value in (*listed, *values.values())}
    present = {_written(value) for value in values.values()}
    names = [name for name in distinct if name in present]
    if all(is_number(distinct[name]) for name in names):
        names.sort(key=lambda name: distinct[name])
    step = 1 / max(1, len(names) - 1)
    spots = {name: place * step if len(names) > 1 else 0.5 for place, name in enumerate(names)}
    places = {n: spots[_written(value)] for n, value in values.items()}
    return places, tuple((spot, _cut(value_text(distinct[name]))) for name, spot in spots.items())


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _cut(name: str) -> str:
    return name if len(name) <= SHORT else f"{name[: SHORT - 1]}…"


def _numbers(
    values: dict[int, float], log: bool
) -> tuple[dict[int, float], tuple[tuple[float, str], ...]]:
    """Between the least and the largest value of any trial."""
    if not values:
        return {}, ()
    low, high = min(values.values()), max(values.values())
    scale = math.log10 if log and low > 0 else float
    span = scale(high) - scale(low)
    if span <= 0:
        return dict.fromkeys(values, 0.5), ((0.5, f"{low:.4g}"),)

    def place(value: float) -> float:
        return (scale(value) - scale(low)) / span

    ticks = _decades(low, high) if scale is math.log10 else _steps(low, high)
    return (
        {number: place(value) for number, value in values.items()},
        tuple((place(tick), f"{tick:.6g}") for tick in ticks),
    )


def _decades(low: float, high: float) -> Sequence[float]:
    """Powers of ten, with 2 and 5 times them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    found = [f * 10.0**power for power in range(first, last + 1) for f in factors]
    inside = [tick for tick in found if low <= tick <= high]
    return inside if len(inside) > 1 else (low, high)


def _steps(low: float, high: float) -> Sequence[float]:
    """Round numbers, three to seven of them."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]
