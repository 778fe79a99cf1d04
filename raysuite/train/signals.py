"""Signals that ask runs to stop."""

from __future__ import annotations

import os
import signal
import stat
import time
from types import FrameType, TracebackType
from typing import Any, Self

from raysuite.records import StopReason
from raysuite.train.stopping import Stop

SIGNALS: dict[signal.Signals, StopReason] = {
    signal.SIGTERM: "interrupted",
    signal.SIGHUP: "interrupted",
    signal.SIGUSR1: "time_limit",
}
"""A person, who ends Ray's jobs, or torchrun, which hands it on to its workers; a terminal that
closes; and SLURM's `--signal=USR1@SECONDS`, ahead of the time limit."""


class Signals:
    """Whether a signal asked this process to stop, since the context was entered.

    `within_s`: the seconds until the deadline, which no signal names; None for no deadline. A
    signal that comes again does what it always does, or nothing where all are `kept`.
    """

    def __init__(self, within_s: float | None = None, kept: bool = False) -> None:
        self._within_s, self._kept = within_s, kept
        self._stop: Stop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        found = {each: signal.getsignal(each) for each in SIGNALS}
        # under nohup SIGHUP is ignored
        self._before = {each: old for each, old in found.items() if old != signal.SIG_IGN}
        for each in self._before:
            signal.signal(each, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def asked(self) -> Stop | None:
        """What the first signal asked for."""
        return self._stop

    def _hear(self, number: int, frame: FrameType | None) -> None:
        heard = signal.Signals(number)
        if self._stop is None:
            deadline = None if self._within_s is None else time.time() + self._within_s
            self._stop = Stop(SIGNALS[heard], deadline)
        if heard is signal.SIGHUP:
            _leave_terminal()
        if not self._kept:
            signal.signal(heard, self._before[heard])


def _leave_terminal() -> None:
    """Write nowhere instead of to a terminal that is gone, which would raise EIO."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
