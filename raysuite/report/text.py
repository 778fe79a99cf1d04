"""Figures as a person reads them: enough digits, the unit, and the interval or its absence."""

from __future__ import annotations

from collections.abc import Callable

from raysuite.records import Ratio, Stat
from raysuite.units import human_bytes, human_seconds

NONE = "–"
"""Shown where there is no figure."""

Writer = Callable[[float], str]


def number(value: float) -> str:
    """Three significant digits or all whole ones: `0.123`, `4.56`, `78.9`, `1,235`."""
    return f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


def percent(share: float) -> str:
    """A share in [0, 1] as `12.3 %`."""
    return f"{100 * share:.1f} %"


def stat(value: Stat | None, write: Writer = number, single: str = " (n = 1)") -> str:
    """`mean ± half-width` of the 95 % interval; `single` says that there is none."""
    if value is None:
        return NONE
    if value.half_width is None:
        return write(value.mean) + single
    if write is number:  # as many decimals as the mean
        decimals = _decimals(value.mean)
        return f"{value.mean:,.{decimals}f} ± {value.half_width:,.{decimals}f}"
    if write is percent:
        return f"{100 * value.mean:.1f} ± {100 * value.half_width:.1f} %"
    return f"{write(value.mean)} ± {write(value.half_width)}"


def mean(value: Stat | None, write: Writer = number) -> str:
    """The mean alone."""
    return NONE if value is None else write(value.mean)


def ratio(value: Ratio | None) -> str:
    """`1.87 [1.80, 1.94]`; without an interval where there is none."""
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return f"{value.value:.2f}"
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def seconds(value: float) -> str:
    """Seconds as `0.123 s`, `12.3 s` or `2 min 05 s`."""
    return human_seconds(value) if value >= 60 else f"{number(value)} s"


def size(value: float) -> str:
    """Bytes as `1.5 GiB`."""
    return human_bytes(value)


def listed(names: list[str], most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 9 more`."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def tied(name: str) -> str:
    """A name that a page breaks between its parts alone, after the dot."""
    return "\u00a0· ".join(part.replace(" ", "\u00a0") for part in name.split(" · "))
