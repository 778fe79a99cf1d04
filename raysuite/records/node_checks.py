"""The node check before training: the figures of each node, and which nodes are slow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from raysuite.errors import UserError
from raysuite.files import write_whole
from raysuite.records.base import checked_line, content_of
from raysuite.spec.base import Frozen


@dataclass(frozen=True)
class Check:
    """A figure that is measured on each node; larger values are better."""

    title: str
    unit: str


CHECKS = {
    "matrix": Check("matrix product", "GFLOP/s"),
    "memory": Check("memory", "GB/s"),
    "disk": Check("disk read", "MB/s"),
    "pairs": Check("exchange with another node", "MB/s"),
}


FILE = "nodes.jsonl"
"""File in a results folder with the results of the node check before the suite."""


class NodeFigures(Frozen):
    """The figures of one node, which are one line of a check's file."""

    host: str
    when: float
    """Seconds since 1970."""
    figures: dict[str, float]
    """Key in CHECKS -> figure, without figures that could not be measured."""
    all_reduce_s: float
    """Shortest time of an all-reduce over all nodes, as measured on this node, in seconds."""
    transports: list[str]
    """The transports of the exchange with other nodes, as `measure.transport` names them."""
    spreads: dict[str, float] = Field(default_factory=dict)
    """Standard deviation of each figure's logarithm over several tries of the check."""
    networks: list[str] = Field(default_factory=list)
    """Devices that NCCL can use in place of sockets; absent in earlier versions."""

    @property
    def fell_back(self) -> bool:
        """Whether NCCL chose sockets although the node has a faster network."""
        return bool(self.networks) and nccl_sockets(self.transports)


def nccl_sockets(transports: Sequence[str]) -> bool:
    """Whether NCCL uses sockets between any two hosts."""
    return any(name.startswith("NCCL") and "NET/Socket" in name for name in transports)


def write_checks(file: Path, rows: Sequence[NodeFigures]) -> None:
    write_whole(file, b"".join(checked_line(row) + b"\n" for row in rows))


def read_checks(file: Path) -> list[NodeFigures]:
    """The lines of a check's file; empty if there is no file. Raises UserError if it is damaged."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    try:
        return [NodeFigures.model_validate_json(content_of(line)) for line in lines]
    except ValueError as error:
        raise UserError(f"{file} is damaged; restore it from a copy, or remove it") from error


@dataclass(frozen=True)
class Slow:
    """A figure of a node that is far below the figures of other nodes."""

    host: str
    check: str
    value: float
    median: float

    @property
    def share(self) -> float:
        """1 - figure / median, in (0, 1)."""
        return 1 - self.value / self.median


FEWEST = 3
"""Smallest number of nodes for which slow nodes are reported: from two unequal figures, it cannot
be told whether one node is slow or the other is fast."""
_DEVIATIONS = 5.0
_DEVIATIONS_OF_FEW = 2.0
"""Bound in robust standard deviations for fewer than eight nodes. Their median absolute deviation
is unreliable: with three nodes, it is the difference between two of them."""
_FEW = 8
_OWN_DEVIATIONS = 3.0
"""Bound, as a multiple of the standard deviation between the tries of one node; this deviation is
pooled over all nodes."""
_LEAST = 0.2
"""Smallest bound, as a difference of logarithms: equal nodes differ by a few percent, even if the
median absolute deviation of a few of them is smaller by chance."""
_AGAIN = 5
_TO_SIGMA = 1.4826
"""Standard deviation / median absolute deviation of a normal distribution (Rousseeuw and Croux
1993, Journal of the American Statistical Association 88:424, section 1)."""


def slow_nodes(rows: Sequence[NodeFigures]) -> list[Slow]:
    """The figures that are, on the log scale, below the median of all nodes by more than a bound.
    The bound is the largest of 0.2, five robust standard deviations (two for fewer than eight
    nodes), and three times the standard deviation between the tries of one node, pooled over all
    nodes. Empty for fewer than three nodes.

    The log scale is used because other programs slow a node by a factor. On a linear scale, the
    fastest of three nodes can be as far from the median as a slow node.
    """
    found = []
    deviations = _DEVIATIONS_OF_FEW if len(rows) < _FEW else _DEVIATIONS
    for check in CHECKS:
        values = {row.host: row.figures[check] for row in rows if row.figures.get(check, 0.0) > 0}
        if len(values) < FEWEST:
            continue
        logs = {host: math.log(value) for host, value in values.items()}
        median = statistics.median(logs.values())
        spread = _TO_SIGMA * statistics.median(abs(each - median) for each in logs.values())
        own = [row.spreads[check] for row in rows if check in row.spreads]
        noise = math.sqrt(statistics.fmean(each**2 for each in own)) if own else 0.0
        bound = median - max(deviations * spread, _OWN_DEVIATIONS * noise, _LEAST)
        middle = statistics.median(values.values())
        found += [Slow(x, check, values[x], middle) for x, each in logs.items() if each < bound]
    return found


def lasting(measure: Callable[[], list[NodeFigures]]) -> list[NodeFigures]:
    """Measure all nodes, and return their figures in the order in which `measure` returns them.

    While a node seems slow, all nodes are measured again, up to five times, and each node's best
    figures are used. So a node that another program slowed for a moment is not reported.
    """
    tries = [measure()]
    rows = tries[0]
    while slow_nodes(rows) and len(tries) <= _AGAIN:
        tries.append(measure())
        rows = [_best(each) for each in zip(*tries, strict=True)]
    return rows


def _best(tries: Sequence[NodeFigures]) -> NodeFigures:
    """A node's best value of each figure over all tries, and its spread between the tries."""
    values = {
        check: [each.figures[check] for each in tries if check in each.figures] for check in CHECKS
    }
    return tries[-1].model_copy(
        update={
            "figures": {check: max(found) for check, found in values.items() if found},
            "spreads": {
                check: statistics.stdev(map(math.log, found))
                for check, found in values.items()
                if len(found) > 1
            },
            "all_reduce_s": min(each.all_reduce_s for each in tries),
        }
    )


def findings(rows: Sequence[NodeFigures]) -> Iterator[str]:
    """The nodes that are slow or fell back to sockets, as text."""
    for each in slow_nodes(rows):
        what = CHECKS[each.check]
        yield (
            f"{each.host} is slow: {what.title} {each.value:.4g} {what.unit}, {each.share:.0%} "
            f"below the median {each.median:.4g}"
        )
    for row in rows:
        if row.fell_back:
            yield f"{row.host} fell back to sockets, although it has {', '.join(row.networks)}"
