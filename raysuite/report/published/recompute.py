"""What a paper states twice: its own arithmetic redone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from raysuite.report.against import QUANTITIES, Recomputed
from raysuite.report.published import Paper, Published


def stated(quantity: str, value: float, high: float | None = None, bound: str = "") -> str:
    """A value as the paper states it, such as `over 0.85`."""
    write = QUANTITIES[quantity].write
    said = write(value) if high is None else f"{write(value)} to {write(high)}"
    return f"{bound} {said}" if bound else said


def recomputed(paper: Paper) -> Iterator[Recomputed]:
    """Speed-ups from training times, efficiencies from speed-ups, and values that contradict."""
    yield from _speed_ups(paper)
    yield from _efficiencies(paper)
    yield from _twice(paper)


def _of(paper: Paper, quantity: str) -> list[Published]:
    return [value for value in paper.values if value.quantity == quantity]


def _said(value: Published) -> str:
    return f"{stated(value.quantity, value.value, value.high, value.bound)} ({value.source})"


def _where(value: Published) -> str:
    parts = (value.framework, value.loader, value.model, f"{value.workers} workers")
    return " · ".join(filter(None, parts))


def _speed_ups(paper: Paper) -> Iterator[Recomputed]:
    times = {(value.model, value.workers): value for value in _of(paper, "training_s")}
    for value in _of(paper, "speed_up"):
        base = times.get((value.model, value.base_workers))
        last = times.get((value.model, value.workers))
        if base is not None and last is not None:
            yield Recomputed(
                f"Speed-up: {_where(value)}",
                _said(value),
                f"{base.value / last.value:.1f}",
                f"training times of {_said(base)} and {_said(last)}",
            )


def _efficiencies(paper: Paper) -> Iterator[Recomputed]:
    for speed_up in _of(paper, "speed_up"):
        if speed_up.workers is None or speed_up.base_workers is None:
            continue
        efficiency = speed_up.value * speed_up.base_workers / speed_up.workers
        same = [
            value
            for value in _of(paper, "efficiency")
            if (value.model, value.workers) == (speed_up.model, speed_up.workers)
        ]
        yield Recomputed(
            f"Efficiency: {_where(speed_up)}",
            "; ".join(f"{_where(value)}: {_said(value)}" for value in same) or "not stated",
            f"{efficiency:.2f}",
            f"speed-up of {_said(speed_up)} on {speed_up.workers} workers "
            f"against {speed_up.base_workers}",
        )


def _twice(paper: Paper) -> Iterator[Recomputed]:
    """Two different statements of one quantity, where nothing can be recomputed."""
    groups: dict[tuple[object, ...], list[Published]] = {}
    for v in paper.values:
        key = (v.quantity, v.model, v.data, v.framework, v.loader, v.workers, v.schedule)
        groups.setdefault((*key, v.global_batch), []).append(v)
    for values in groups.values():
        if any(_contradict(a, b) for a, b in combinations(values, 2)):
            title = QUANTITIES[values[0].quantity].title
            yield Recomputed(
                f"{title}: {_where(values[0])}",
                "; ".join(map(_said, values)),
                "–",
                "two statements of one figure; neither follows from the others",
            )


def _contradict(first: Published, second: Published) -> bool:
    for bound, value in ((first, second), (second, first)):
        if bound.bound == "over":
            return value.bound == "" and value.value <= bound.value
        if bound.bound == "under":
            return value.bound == "" and value.value >= bound.value
    return first.value != second.value
