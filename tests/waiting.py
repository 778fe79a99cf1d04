"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

# generous: these machines have few cores, and share them
TIMEOUT_S = 400


def until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Wait for it; fail where it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
