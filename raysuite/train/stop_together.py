"""Stop a run between two steps on request, either for good or to be resumed later.

Only rank 0 reads requests, but all ranks have to stop after the same step: a rank that continued
would wait for the others in its next collective. So about once per second all ranks take part in a
small reduction, which starts after a step, runs during the next step, and is read after that step.
The reduction also carries the number of steps until the next reduction.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, get_args

from raysuite.records import StopReason

if TYPE_CHECKING:
    import torch

    from raysuite.parallel.base import World
    from raysuite.parallel.comm import Comm, Pending

# Signals that request runs to stop.

SIGNALS: dict[signal.Signals, StopReason] = {
    signal.SIGTERM: "interrupted",
    signal.SIGHUP: "interrupted",
    signal.SIGUSR1: "time_limit",
}
"""SIGTERM comes from a person who ends Ray's jobs, or from torchrun, which forwards it to its
workers; SIGHUP from a terminal that closes; SIGUSR1 from SLURM's `--signal=USR1@SECONDS`, before
the time limit."""


class Signals:
    """Records, within the context, whether this process has received a signal to stop.

    `within_s`: seconds from the signal to the deadline; None for no deadline. Repeated signals have
    their usual effect; with `kept`, they have no effect.
    """

    def __init__(self, within_s: float | None = None, kept: bool = False) -> None:
        self._within_s, self._kept = within_s, kept
        self._stop: Stop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        found = {each: signal.getsignal(each) for each in SIGNALS}
        # nohup ignores SIGHUP: leave it ignored
        self._before = {each: old for each, old in found.items() if old != signal.SIG_IGN}
        for each in self._before:
            signal.signal(each, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def request(self) -> Stop | None:
        """The request made by the first signal; None if there was none."""
        return self._stop

    def _receive(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if self._stop is None:
            deadline = None if self._within_s is None else time.time() + self._within_s
            self._stop = Stop(SIGNALS[received], deadline)
        if received is signal.SIGHUP:
            _leave_terminal()
        if not self._kept:
            signal.signal(received, self._before[received])


def _leave_terminal() -> None:
    """Redirect the terminal's streams to /dev/null: writing to a closed terminal raises EIO."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)


MEET_SECONDS = 1.0
"""Approximate seconds between two reductions. On one host of 2 cores a reduction takes 7 ms with 8
ranks and 12 ms with 32 (benchmarks/results/worlds.md), in parallel with steps."""
_MOST_STEPS = 1000
_REASONS: tuple[StopReason, ...] = get_args(StopReason)
_PRUNE = 1 + len(_REASONS)


@dataclass(frozen=True)
class Stop:
    """A request to stop a run with a checkpoint."""

    reason: StopReason
    deadline: float | None = None
    """Time at which the process will be ended, in seconds since 1970; None without a deadline."""


@dataclass(frozen=True)
class Prune:
    """A request to end a run for good, without a checkpoint, because other runs are better."""

    by: str = ""
    """Name of the scheduler; on rank 0 only."""
    value: float | None = None
    """The value that was compared with other runs; on rank 0 only."""
    message: str = ""


EndRequest = Stop | Prune

RequestedEnd = Callable[[], EndRequest | None]
"""Returns a request to stop, or None. Called on rank 0, between steps, at most twice a second:
it may read a small file."""


def never() -> Stop | None:
    """A `RequestedEnd` for runs that are never stopped."""
    return None


class Watch:
    """Distributes rank 0's request to stop, so that all ranks return it after the same step."""

    def __init__(self, requested: RequestedEnd, world: World, comm: Comm) -> None:
        self._requested, self._reads, self._comm = requested, world.rank == 0, comm
        self._pending: Pending | None = None
        self._prune = Prune()
        self._left = 1
        """Steps until the next reduction; the same on all ranks."""
        self._met_at, self._steps, self._anew = time.monotonic(), 0, False

    def anew(self) -> None:
        """Call this on every rank before steps of a different duration, such as those of a
        validation. The next reduction then follows the first of these steps.

        Otherwise the interval to the next reduction, a number of steps computed from the short
        steps of a validation, could last half an epoch of training.
        """
        self._left, self._anew = 1, True
        self._met_at, self._steps = time.monotonic(), 0

    def step(self) -> EndRequest | None:
        """Return the request if the run has to stop now. Call this after each step on all ranks."""
        self._steps += 1
        if self._pending is not None:
            number, deadline, steps = self._pending().tolist()
            # a number of steps that was computed before `anew` is wrong for steps of another
            # duration
            self._pending, self._left = None, 1 if self._anew else int(steps)
            if number == _PRUNE:
                return self._prune
            if number:
                return Stop(_REASONS[int(number) - 1], deadline or None)
        self._left, self._anew = self._left - 1, False
        if self._left <= 0:
            self._pending = self._comm.begin_max(self._word())
        return None

    def end(self) -> None:
        """Wait for a reduction in progress. Call this after the last step, on every rank."""
        if self._pending is not None:
            self._pending()
            self._pending = None

    def _word(self) -> torch.Tensor:
        """[3]: number of the request or 0, deadline or 0, steps until the next reduction."""
        import torch

        word = torch.zeros(3, dtype=torch.float64)
        if not self._reads:
            return word
        now = time.monotonic()
        seconds = max(now - self._met_at, 1e-6)
        word[2] = min(max(1, round(MEET_SECONDS * self._steps / seconds)), _MOST_STEPS)
        request = self._requested()
        if isinstance(request, Prune):
            word[0], self._prune = _PRUNE, request
        elif request is not None:
            word[0], word[1] = 1 + _REASONS.index(request.reason), request.deadline or 0.0
        self._met_at, self._steps = now, 0
        return word
