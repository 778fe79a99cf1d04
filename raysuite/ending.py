"""End this process without Python's clean-up, which frees objects that threads may still use. End
another process together with its process group."""

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
    """End by `os._exit`, after waiting for non-daemon threads, running exit handlers and flushing
    output.

    With Ray and pandas loaded, Python takes seconds to free objects; a Gloo thread that frees a
    tensor meanwhile can abort the process (seen in 1 of about 20 processes that used Gloo).
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python itself does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_group(process: subprocess.Popen[Any], patience_s: float = 0.0) -> None:
    """End a process and the process group that it leads (`start_new_session`). With `patience_s`,
    send SIGTERM first and wait at most that long. Then send SIGKILL to the whole group."""
    if patience_s and process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
