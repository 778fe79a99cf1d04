"""Runs that stop between steps because somebody asked, and go on later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch

from raysuite.parallel.base import World
from raysuite.parallel.comm import Comm
from raysuite.records import StopReason


@dataclass(frozen=True)
class Stop:
    """A request to stop a run with a checkpoint."""

    reason: StopReason
    deadline: float | None = None
    """By when, in seconds since 1970; None where nobody ends the process."""


AskedToStop = Callable[[], Stop | None]
"""Whether somebody wants the run to stop. Asked on rank 0, between steps, at most twice a second:
reading a small file is cheap enough."""


def never() -> Stop | None:
    """Nobody asks."""
    return None


_REASONS: tuple[StopReason, ...] = get_args(StopReason)


def agreed(asked: AskedToStop, world: World, comm: Comm) -> Stop | None:
    """What rank 0 is asked, on all ranks; every rank calls it."""
    stop = asked() if world.rank == 0 else None
    row = torch.zeros(2, dtype=torch.float64)
    if stop is not None:
        row[0], row[1] = 1 + _REASONS.index(stop.reason), stop.deadline or 0.0
    number, deadline = comm.all_reduce(row, "max").tolist()
    return Stop(_REASONS[int(number) - 1], deadline or None) if number else None
