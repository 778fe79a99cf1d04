"""Ending a process without Python's clean-up, which frees objects that threads may still use."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End by `os._exit`, after threads that are no daemons, exit handlers, and what was printed.

    With Ray and pandas loaded, Python needs seconds to free all objects; a thread of Gloo that
    frees a tensor meanwhile aborts the process (one in some twenty that had joined a group).
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python itself does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
