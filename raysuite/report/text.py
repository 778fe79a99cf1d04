"""Figures as a person reads them: enough digits, the unit, and the interval or its absence."""

from __future__ import annotations

import math
from collections.abc import Callable

from raysuite.records import Ratio, Stat
from raysuite.records.metrics import Unit
from raysuite.units import human_bytes, human_seconds

NONE = "–"
"""Shown where there is no figure."""

_LONG = 1e9
"""Numbers from here on are written with an exponent: ends of hopeless intervals."""

Writer = Callable[[float], str]


def number(value: float) -> str:
    """Three significant digits or all whole ones: `0.123`, `4.56`, `78.9`, `1,235`, `1.2e+12`."""
    if abs(value) >= _LONG:
        return f"{value:.2g}" if math.isfinite(value) else "∞"
    return f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


def percent(share: float) -> str:
    """A share in [0, 1] as `12.3 %`."""
    return f"{100 * share:.1f} %"


def stat(value: Stat | None, write: Writer = number, single: str = " (n = 1)") -> str:
    """`12.3 [11.8, 12.9] s`: the mean and its 95 % interval; `single` says that there is none, and
    stands behind the interval of a single accuracy."""
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return write(value.mean) + single
    ends = (value.mean, value.low, value.high)
    written = [write(each) for each in ends]
    if write is number and value.high < _LONG:  # as many decimals as the mean
        written = [f"{each:,.{_decimals(value.mean)}f}" for each in ends]
    parts = [each.rsplit(" ", 1) for each in written]
    # one unit for all where they have the same, of which there is a single one: not `2 min 05 s`
    alike = all(len(p) == 2 and " " not in p[0] for p in parts) and len({p[-1] for p in parts}) == 1
    if alike:
        written, unit = [p[0] for p in parts], f" {parts[0][1]}"
    else:
        unit = ""
    told = f"{written[0]} [{written[1]}, {written[2]}]{unit}"
    return told + single if value.n == 1 else told


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


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def scaled(unit: str) -> Writer:
    """Writes `12.3 GFLOP/s`: decimal prefixes, as vendors and NCCL use them."""

    def write(value: float) -> str:
        for size, prefix in _PREFIXES:
            if value >= size:
                return f"{number(value / size)} {prefix}{unit}"
        return f"{number(value)} {unit}"

    return write


WRITERS: dict[Unit, Writer] = {
    "images/s": number,
    "s": seconds,
    "share": percent,
    "bytes": size,
    "FLOP/s": scaled("FLOP/s"),
    "B/s": scaled("B/s"),
    "J/image": number,
    "": number,
}
"""How the values of each unit are written."""
