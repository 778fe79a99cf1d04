"""TimeShares -> shares of the profiled window, per worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysuite.records.schema import TimeShares


@dataclass(frozen=True)
class Share:
    """One part of the window, in [0, 1]."""

    workers: tuple[float, ...]
    """By rank."""
    slowest: float
    """That of the slowest worker: see `Shares.slowest`."""

    @property
    def mean(self) -> float:
        """Mean over workers."""
        return sum(self.workers) / len(self.workers)


@dataclass(frozen=True)
class Shares:
    """Where the time of a run's profiled steps went.

    computation + communication_exposed + data_exposed + other = 1, on each worker.
    """

    computation: Share
    communication: Share
    """All of it, whether or not something is computed meanwhile."""
    communication_exposed: Share
    data: Share
    """All of the loading that the loop waited for."""
    data_exposed: Share
    other: Share
    slowest: int
    """The rank with the least exposed communication: the others wait for it in theirs."""
    steps: int
    window_seconds: float
    """Of the worker whose window was longest."""
    cost_seconds: float
    """What the profile took; it is in no other figure."""


def run_shares(record: TimeShares | None) -> Shares | None:
    """The shares of one run; None where nothing was profiled."""
    if record is None or not record.window_seconds or min(record.window_seconds) <= 0:
        return None
    windows = record.window_seconds
    waits = _parts(record.communication_exposed_seconds, windows)
    slowest = waits.index(min(waits))

    def share(values: Sequence[float]) -> Share:
        return Share(tuple(values), values[slowest])

    computation = _parts(record.computation_seconds, windows)
    loads = _parts(record.data_exposed_seconds, windows)
    return Shares(
        computation=share(computation),
        communication=share(_parts(record.communication_seconds, windows)),
        communication_exposed=share(waits),
        data=share(_parts(record.data_seconds, windows)),
        data_exposed=share(loads),
        other=share(
            [max(0.0, 1 - sum(three)) for three in zip(computation, waits, loads, strict=True)]
        ),
        slowest=slowest,
        steps=record.steps,
        window_seconds=max(windows),
        cost_seconds=record.seconds,
    )


def _parts(seconds: Sequence[float], windows: Sequence[float]) -> list[float]:
    return [part / window for part, window in zip(seconds, windows, strict=True)]
