"""Energy that devices and hosts used during an epoch's training, and the devices' utilisation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from raysuite.spec.base import Frozen


class PowerUse(Frozen):
    """Energy use in one epoch's training, without validation. Lists hold a value per worker, by
    rank; None stands for a value that could not be read."""

    devices: list[str]
    """The device of each worker: equal for workers that share a device, empty if unknown."""
    device_joules: list[float | None]
    """Energy of the worker's GPU, by NVML's counter."""
    device_busy: list[float | None]
    """Share of the time in which a kernel ran on the GPU, by NVML's samples, in [0, 1]."""
    hosts: list[str]
    """The host of each worker: equal for workers on one host."""
    host_joules: list[float | None]
    """Energy of the host's processors and memory, by RAPL's counters."""


def counter_name(number: float) -> str:
    """The name of an energy counter, computed from its number. Workers that share the counter have
    the same number. Empty for 0, which means no counter."""
    return f"{int(number):012x}" if number else ""


def joined(parts: Sequence[tuple[PowerUse | None, float]]) -> PowerUse | None:
    """The total energy use of consecutive parts (use, seconds) of a training run. None if the
    energy of a part is unknown, or if the parts ran on different devices or hosts."""
    uses, seconds = [use for use, _ in parts if use is not None], [each for _, each in parts]
    if not uses or len(uses) < len(parts):
        return None
    first = uses[0]
    if any((use.devices, use.hosts) != (first.devices, first.hosts) for use in uses):
        return None

    def total(lists: Sequence[Sequence[float | None]], *weights: float) -> list[float | None]:
        rows = [zip(weights, each, strict=True) for each in zip(*lists, strict=True)]
        return [_sum(None if x is None else weight * x for weight, x in row) for row in rows]

    alike = [1.0] * len(uses)
    whole = math.fsum(seconds) or 1.0
    return PowerUse(
        devices=first.devices,
        device_joules=total([use.device_joules for use in uses], *alike),
        device_busy=total([use.device_busy for use in uses], *(each / whole for each in seconds)),
        hosts=first.hosts,
        host_joules=total([use.host_joules for use in uses], *alike),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else math.fsum(filter(None, known))


def once(names: Sequence[str], joules: Sequence[float | None]) -> float | None:
    """The sum over distinct names: a counter that several workers share counts once.

    Workers read a shared counter at different times; the largest reading counts. None if a reading
    is unknown, because a partial sum would be too small.
    """
    known: dict[str, float] = {}
    for name, each in zip(names, joules, strict=True):
        if each is None or not name:
            return None
        known[name] = max(each, known.get(name, 0.0))
    return sum(known.values()) if known else None
