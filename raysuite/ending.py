"""Ending this process, without Python's clean-up, which frees objects that threads may still use;
and ending a group of others."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import Any, NoReturn


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


def end_group(process: subprocess.Popen[Any], patience_s: float = 0.0) -> None:
    """End a process and its group, which it leads (`start_new_session`): by SIGTERM where there is
    patience, and what is left after it by SIGKILL."""
    if patience_s and process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
