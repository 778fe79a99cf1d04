"""Draw the values of a sweep's trials from its search space."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raysuite.spec.search import LISTED, Dimension, Kind, SearchOptions, holds

Values = dict[str, Any]
"""Dotted key -> value, in the order of the space; keys whose condition does not hold are absent."""

_DIGITS = 6
"""Drawn numbers are rounded to this many significant digits, so that their text is short and
exact."""


MOST_LEFT_OUT = 100
"""If infeasible draws are replaced, a sweep ends after this many consecutive draws without a valid
spec."""


def draws_replacements(search: SearchOptions) -> bool:
    """Whether infeasible values are replaced by newly drawn values; False for a grid."""
    return search.trials is not None and not any(each.grid for each in search.space.values())


def drawn(search: SearchOptions, left_out: int = 0) -> Iterator[Values]:
    """The values of every trial of the searchers `random` and `grid`.

    A trial's values depend on the seed and the trial's number, not on the results of other trials.
    `left_out`: the number of infeasible draws so far; if they are replaced, this many draws are
    added.
    """
    if search.searcher.name == "grid":
        yield from _crossed(search.space, {}, LISTED)
        return
    more = left_out if draws_replacements(search) else 0
    for number in range((search.trials or 1) + more):
        chance = random.Random(f"{search.seed}/{number}")
        values = {
            key: draw(dimension, chance)
            for key, dimension in search.space.items()
            if dimension.kind != "grid"
        }
        yield from _crossed(search.space, values, ("grid",))


def count(search: SearchOptions) -> int:
    if search.searcher.name in ("random", "grid"):
        return sum(1 for _ in drawn(search))
    return search.trials or 1


def draw(dimension: Dimension, chance: random.Random) -> Any:
    arguments = dimension.arguments
    match dimension.kind:
        case "uniform":
            low, high = arguments
            return _short(chance.uniform(low, high), low, high)
        case "loguniform":
            low, high = arguments
            return _short(math.exp(chance.uniform(math.log(low), math.log(high))), low, high)
        case "normal":
            return _short(chance.gauss(*arguments), -math.inf, math.inf)
        case "qrandn":
            return dimension.on_step(chance.gauss(*arguments[:2]))
        case "quniform":
            return dimension.on_step(chance.uniform(*arguments[:2]))
        case "randint" | "qrandint":
            return chance.choice(dimension.whole())
        case "lograndint" | "qlograndint":
            whole = dimension.whole()
            low, end = whole[0] // whole.step, whole[-1] // whole.step + 1
            number = math.floor(math.exp(chance.uniform(math.log(low), math.log(end))))
            return number * whole.step
        case "qloguniform":
            low, high = map(math.log, arguments[:2])
            return dimension.on_step(math.exp(chance.uniform(low, high)))
        case "choice" | "grid":
            return chance.choice(arguments)


def perturbed(
    dimension: Dimension, value: Any, factors: Sequence[float], chance: random.Random
) -> Any:
    """A value near `value`. In a range: `value` times one of `factors`, limited to the range; in a
    list: a neighbour of `value`."""
    arguments = dimension.arguments
    if dimension.kind in LISTED:
        if value not in arguments:
            return draw(dimension, chance)
        place = arguments.index(value)
        beside = [each for each in (place - 1, place + 1) if 0 <= each < len(arguments)]
        return arguments[chance.choice(beside)] if beside else value
    factor = chance.choice(factors)
    wanted, steps = value * factor, dimension.steps()
    if dimension.kind == "qrandn":
        step = dimension.arguments[2]
        steps = [dimension.on_step(each) for each in (value - step, wanted, value + step)]
    if steps:  # at 0, the factor gives only the direction
        return _moved(value, wanted or (factor - 1) * 1e-9, steps)
    limits = (-math.inf, math.inf) if dimension.is_normal else dimension.arguments
    return _short(wanted, *limits)


def _moved(value: float, wanted: float, steps: Sequence[float]) -> float:
    """The step nearest to `wanted`, among those steps that lie on the same side of `value` as
    `wanted`; `value` if there are none."""
    beyond = [each for each in steps if (each - value) * (wanted - value) > 0]
    return min(beyond, key=lambda each: abs(each - wanted), default=value)


def active(space: Mapping[str, Dimension], values: Mapping[str, Any]) -> Values:
    """The values whose conditions hold, in the order of the space.

    A condition on a key that has no value does not hold.
    """
    kept: Values = {}
    pending = [key for key in space if key in values]
    while pending:
        ready = [key for key in pending if not any(other in pending for other in space[key].when)]
        for key in ready:
            if holds(space[key].when, kept):
                kept[key] = values[key]
        pending = [key for key in pending if key not in ready]
    return {key: kept[key] for key in space if key in kept}


def _crossed(
    space: Mapping[str, Dimension], values: Mapping[str, Any], kinds: tuple[Kind, ...]
) -> Iterator[Values]:
    """Combine the listed values of all dimensions of these kinds, and yield `values` updated with
    each combination. Keys whose conditions do not hold are left out, and so are repeated
    combinations."""
    listed = {key: each.arguments for key, each in space.items() if each.kind in kinds}
    made: set[tuple[int | None, ...]] = set()
    for places in itertools.product(*(range(len(each)) for each in listed.values())):
        picked = {key: listed[key][n] for key, n in zip(listed, places, strict=True)}
        found = active(space, {**values, **picked})
        # indices are compared, as values may be unhashable, and True equals 1
        kept = tuple(n if key in found else None for key, n in zip(listed, places, strict=True))
        if kept not in made:
            made.add(kept)
            yield found


def _short(value: float, low: float, high: float) -> float:
    return min(max(float(f"{value:.{_DIGITS}g}"), low), high)
