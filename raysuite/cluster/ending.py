"""How a command and what it has started end together."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """In a child, before it runs: SIGTERM once its parent is gone. Linux alone can do that."""
    if sys.platform == "linux":
        _LIBC.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@contextmanager
def in_order() -> Iterator[None]:
    """While in the context, SIGHUP and SIGTERM are exits that run every `finally`.

    One that is ignored, as under nohup, stays ignored. For the main thread.
    """
    found = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    before = {number: each for number, each in found.items() if each != signal.SIG_IGN}

    def leave(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # a terminal that closes says it more than once
        sys.exit(128 + number)

    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)
