"""What an agent hears: the end, by a signal or a file, and the warning before it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

_STEP_S = 0.2
_LOOK_EACH_S = 1.0


class Signals:
    """SIGTERM, SIGINT and SIGHUP mean the end, and so does a file; SIGUSR1 warns before it."""

    def __init__(self, end: Path) -> None:
        """The file `end` is there once the end was asked for."""
        self.pid = os.getpid()
        self._file, self._looked = end, 0.0
        self._ended = threading.Event()
        self._warned = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGUSR1, self._warn)

    @property
    def ended(self) -> bool:
        if not self._ended.is_set() and time.monotonic() - self._looked > _LOOK_EACH_S:
            self._looked = time.monotonic()
            if self._file.exists():
                self._ended.set()
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
