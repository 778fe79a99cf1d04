"""Signals that ask a run to stop, for runs without a driver."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from raysuite.records import StopReason
from raysuite.train.stopping import Stop

SIGNALS: dict[signal.Signals, StopReason] = {
    signal.SIGTERM: "interrupted",
    signal.SIGUSR1: "time_limit",
}
"""torchrun hands SIGTERM on to its workers; `srun --signal=USR1@SECONDS` comes ahead of the time
limit. A signal that comes again does what it always does."""


class Signals:
    """Whether a signal asked this process to stop, since the context was entered."""

    def __init__(self) -> None:
        self._stop: Stop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._hear) for each in SIGNALS}
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
            self._stop = Stop(SIGNALS[heard])
        signal.signal(heard, self._before[heard])
