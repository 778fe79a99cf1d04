"""A space's dimensions as a searcher that learns knows them: plain numbers between bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from raysuite.spec.search import Dimension

_TAIL = 1e-6
"""Of a normal distribution: what lies farther out is not drawn."""
_DIGITS = 6
"""Significant digits of a number that is drawn: it can be read, and written again as it was."""


@dataclass(frozen=True)
class Parameter:
    """What is asked for in the place of a dimension's value."""

    kind: Literal["float", "log", "int", "choice"]
    """choice: the place of a listed value, which may be a whole block."""
    low: float
    high: float
    """Both can be drawn."""


def parameter_of(dimension: Dimension) -> Parameter:
    """A normal distribution is asked for by its quantile, a quniform by its step's number."""
    arguments = dimension.arguments
    match dimension.kind:
        case "uniform":
            return Parameter("float", arguments[0], arguments[1])
        case "loguniform":
            return Parameter("log", arguments[0], arguments[1])
        case "normal":
            return Parameter("float", _TAIL, 1 - _TAIL)
        case "randint":
            return Parameter("int", arguments[0], arguments[1] - 1)
        case "quniform":
            return Parameter("int", 0, len(dimension.steps()) - 1)
        case "choice" | "grid":
            return Parameter("choice", 0, len(arguments) - 1)


def value_of(dimension: Dimension, found: Any) -> Any:
    """What stands in the spec for what a searcher found."""
    arguments = dimension.arguments
    match dimension.kind:
        case "uniform" | "loguniform":
            return min(max(_short(found), arguments[0]), arguments[1])
        case "normal":
            return _short(NormalDist(*arguments).inv_cdf(found))
        case "randint":
            return int(found)
        case "quniform":
            return dimension.steps()[int(found)]
        case "choice" | "grid":
            return arguments[int(found)]


def found_in(dimension: Dimension, value: Any) -> Any:
    """What a searcher had found for what stands in the spec."""
    match dimension.kind:
        case "normal":
            return min(max(NormalDist(*dimension.arguments).cdf(value), _TAIL), 1 - _TAIL)
        case "quniform":
            steps = dimension.steps()
            return min(range(len(steps)), key=lambda place: abs(steps[place] - value))
        case "choice" | "grid":
            return dimension.arguments.index(value)
        case _:
            return value


def ordered(space: Mapping[str, Dimension]) -> Iterator[tuple[str, Dimension]]:
    """Each key after those that its conditions are on."""
    told: set[str] = set()
    while len(told) < len(space):
        for key, dimension in space.items():
            if key not in told and told.issuperset(dimension.when):
                told.add(key)
                yield key, dimension


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
