"""What devices and hosts drew while an epoch trained, and how busy the devices were."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict


class PowerUse(BaseModel):
    """Of one epoch's training, without validation. Lists hold a value per worker, in the order of
    ranks, None where nothing could be read."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    devices: list[str]
    """Which device each worker has: equal for workers that share one, empty where unknown."""
    device_joules: list[float | None]
    """Energy of the worker's GPU, by NVML's counter."""
    device_busy: list[float | None]
    """Part of the time in which a kernel ran on it, by NVML's samples, in [0, 1]."""
    hosts: list[str]
    """Which host each worker is on: equal for workers of one host."""
    host_joules: list[float | None]
    """Energy of the host's processors and their memory, by RAPL's counters."""


def once(names: Sequence[str], joules: Sequence[float | None]) -> float | None:
    """The sum over what is told apart by name: what several workers share counts once.

    Readings of one name differ by when each worker took them; the largest counts. None where any
    of them is unknown: a part of the energy is not the energy.
    """
    known: dict[str, float] = {}
    for name, each in zip(names, joules, strict=True):
        if each is None or not name:
            return None
        known[name] = max(each, known.get(name, 0.0))
    return sum(known.values()) if known else None
