"""Figures as text: with enough digits, the unit, and the interval if there is one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from raysuite.records import Ratio, Stat
from raysuite.records.metrics import Unit
from raysuite.units import GIB, KIB, MIB, human_bytes, human_seconds
from raysuite.units import count as count

NONE = "–"
"""The text for a missing figure."""

_LONG = 1e9
"""Numbers of at least this absolute value, such as ends of very wide intervals, are written with an
exponent."""

HOPELESS = 10
"""An interval whose upper end exceeds this multiple of its mean carries no information."""

Writer = Callable[[float], str]

_OPTIONS = re.compile(r"(\w+)\(([^()]*)\)")
"""Matches a block with its options, within a name: `pipeline(schedule=1f1b, stages=2)`."""


def without_shared_options(names: Iterable[str]) -> dict[str, str]:
    """Name -> the name without the options that are equal in all names with the same block. If two
    names would become equal, all names are kept whole."""
    names, blocks = list(names), dict[str, list[set[str]]]()
    for block, options in (found for name in names for found in _OPTIONS.findall(name)):
        blocks.setdefault(block, []).append(set(options.split(", ")))
    shared = {
        block: set.intersection(*found) if len(found) > 1 else set()
        for block, found in blocks.items()
    }

    def cut(found: re.Match[str]) -> str:
        left = [each for each in found[2].split(", ") if each not in shared[found[1]]]
        return f"{found[1]}({', '.join(left)})" if left else found[1]

    short = {name: _OPTIONS.sub(cut, name) for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def number(value: float) -> str:
    """Three significant digits, or the whole integer part, with at most three decimals: `0.012`,
    `0.123`, `4.56`, `78.9`, `1,235`; from 1e9 on, two significant digits: `1.2e+12`."""
    if abs(value) >= _LONG:
        return f"{value:.2g}" if math.isfinite(value) else "∞"
    return f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    size = abs(value)
    return 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 1 else 3


@dataclass(frozen=True)
class Multiple:
    """Formats values as multiples of `size`, a unit that is called `name`: `12.3 MiB`."""

    size: float
    name: str

    def __call__(self, value: float) -> str:
        return f"{number(value / self.size) if value else 0} {self.name}"


def percent(share: float) -> str:
    """A share in [0, 1] as `12.3 %`."""
    return f"{100 * share:.1f} %"


def stat(value: Stat | None, write: Writer = number, single: str = " (n = 1)") -> str:
    """The mean and its 95 % interval: `12.3 [11.8, 12.9] s`. `single` is written in place of a
    missing interval. An accuracy has an interval even with a single repeat; `single` then follows
    the interval. An interval that carries no information is replaced by the range of the values:
    `6,150 (n = 2: 3,000 to 9,300)`."""
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return write(value.mean) + single
    if value.n > 1 and value.high > HOPELESS * value.mean > 0:
        least, most = write(min(value.values)), write(max(value.values))
        return f"{write(value.mean)} (n = {value.n}: {least} to {most})"
    ends = (value.mean, value.low, value.high)
    written = [write(each) for each in ends]
    unit = Multiple(1, "") if write is number else write
    if isinstance(unit, Multiple) and value.high < _LONG:  # as many decimals as the mean
        digits = _decimals(value.mean / unit.size)
        written = [f"{each / unit.size:,.{digits}f} {unit.name}".rstrip() for each in ends]
    parts = [each.rsplit(" ", 1) for each in written]
    # write the unit once if all parts have the same single unit: not in `2 min 05 s`
    alike = all(len(p) == 2 and " " not in p[0] for p in parts) and len({p[-1] for p in parts}) == 1
    behind = f" {parts[0][1]}" if alike else ""
    written = [p[0] for p in parts] if alike else written
    told = f"{written[0]} [{written[1]}, {written[2]}]{behind}"
    return told + single if value.n == 1 else told


def mean(value: Stat | None, write: Writer = number) -> str:
    return NONE if value is None else write(value.mean)


def optional(value: float | None, write: Writer = number) -> str:
    return NONE if value is None else write(value)


def ratio(value: Ratio | None, write: Writer = "{:.2f}".format) -> str:
    """`1.87 [1.80, 1.94]`; without the interval if it is missing. An interval that carries no
    information is replaced by `(repeats differ too much)`."""
    if value is None:
        return NONE
    if 0 < abs(value.value) < 0.095:  # `0.0009`, not `0.00`
        write = "{:.2g}".format
    if value.low is None or value.high is None:
        return write(value.value)
    if value.high > HOPELESS * value.value > 0:
        return f"{write(value.value)} (repeats differ too much)"
    return f"{write(value.value)} [{write(value.low)}, {write(value.high)}]"


def seconds(value: float) -> str:
    """Seconds as `0.123 s`, `12.3 s` or `2 min 05 s`."""
    return human_seconds(value) if value >= 60 else f"{number(value)} s"


def listed(names: list[str], most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 9 more`."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def tied(name: str) -> str:
    """Replace the spaces in a name by no-break spaces, except those after a middle dot between two
    parts of the name and those after a comma between two options."""
    return "\u00a0· ".join(re.sub("(?<!,) ", "\u00a0", part) for part in name.split(" · "))


def paired(cell: str) -> str:
    """Replace the spaces in a table cell by no-break spaces, so that lines break only before an
    interval or `(n = ...)`."""
    parts = r"\[[^\]]*\](?: \S+)?|\(n = \d+\)|(?<=\d) (?=[^\W\d]|%)"
    return re.sub(parts, lambda found: found[0].replace(" ", "\u00a0"), cell)


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (0, ""))
_SIZES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "s": ((7200, 3600, "h"), (600, 60, "min"), (1, 1, "s"), (0, 1e-3, "ms")),
    "bytes": ((GIB, GIB, "GiB"), (MIB, MIB, "MiB"), (KIB, KIB, "KiB"), (0, 1, "B")),
    # decimal, as in vendors' and NCCL's figures
    **{
        unit: tuple((size, size or 1, prefix + unit) for size, prefix in _PREFIXES)
        for unit in ("FLOP/s", "B/s")
    },
}
"""Unit of a metric -> its multiples, the largest first, as (smallest value that is written in the
multiple, size of the multiple, name of the multiple)."""


def writer(unit: Unit, values: Iterable[float | None]) -> Writer:
    """The format for a column of a table with `values`, in the multiple of `unit` that suits the
    median of their absolute values."""
    if unit not in _SIZES:
        return percent if unit == "share" else number
    known = sorted(abs(value) for value in values if value is not None)
    middle = known[len(known) // 2] if known else 0.0
    _, size, name = next(each for each in _SIZES[unit] if middle >= each[0])
    return Multiple(size, name)


def _alone(unit: Unit) -> Writer:
    return lambda value: writer(unit, [value])(value)


WRITERS: dict[Unit, Writer] = {
    **{unit: _alone(unit) for unit in get_args(Unit)},
    "s": seconds,
    "bytes": human_bytes,
}
"""Unit -> format of a single value."""
