"""The two signals that an agent hears: the end, and the warning before it."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

_STEP_S = 0.2


class Signals:
    """SIGTERM, SIGINT and SIGHUP mean the end; SIGUSR1 that the time limit is near."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ended = threading.Event()
        self._warned = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGUSR1, self._warn)

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def take_warning(self) -> bool:
        """Whether there was a warning since the last call."""
        warned = self._warned.is_set()
        self._warned.clear()
        return warned

    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_STEP_S, left))

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ended.set()

    def _warn(self, number: int, frame: FrameType | None) -> None:
        self._warned.set()
