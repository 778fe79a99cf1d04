"""Run a command, then kill all processes that it started and that still run.

`python -m raysuite.cluster.guard FOLDER -- WORDS` starts the guard, which runs the command WORDS as
its child. The guard's standard input is a pipe from the caller. A number N in this pipe requests
the end of the command: the guard sends SIGTERM and, if the command still runs after N seconds,
SIGKILL. If the pipe is closed, the caller has ended, perhaps by SIGKILL, and the command is killed
at once. After the command's end, the guard kills all processes that the command started: its
descendants, which the guard adopts, and processes with a variable that names FOLDER. The command's
exit code and the time of its end, by the monotonic clock, are written to FOLDER/exit.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from raysuite.cluster.process import adopt_orphans, end_with_parent, kill_found, with_variable
from raysuite.files import write_whole

FOLDER = "RAYSUITE_SCRIPT_FOLDER"
"""Environment variable of the command and of all processes that it starts; its value is the guard's
FOLDER. By this variable, the guard also finds processes that are not its descendants."""
GRACE_S = 10.0
"""Seconds from SIGTERM to SIGKILL."""
_SIGNALS = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
"""Signals that SLURM sends to a whole step. The guard blocks them, to outlive the command."""
_REPORT = "exit.json"


class Exit(NamedTuple):
    """How a guarded command ended."""

    code: int
    """Exit status; -N if signal N ended the command."""
    at: float
    """Time of the end, by the monotonic clock of its host."""


def start(
    words: Sequence[str], folder: Path, output: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command and its guard; the output of both goes to `output`."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder), "--", *words],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def ask(guard: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Request the end of a guarded command."""
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the guard has already ended
        os.write(guard.stdin.fileno(), str(grace_s).encode())


def ended(guard: subprocess.Popen[bytes], folder: Path) -> Exit:
    """Wait for the end of a guarded command and of all processes that it started. If the guard was
    killed, return the exit status of the guard and the present time."""
    code = guard.wait()
    assert guard.stdin is not None
    guard.stdin.close()
    file = folder / _REPORT
    if file.exists():
        return Exit(**json.loads(file.read_text("utf-8")))
    kill_found(lambda: with_variable(FOLDER, str(folder)))
    return Exit(code, time.perf_counter())


def _before() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    end_with_parent(signal.SIGKILL)


def main(words: Sequence[str]) -> None:
    """Run the command after `--`, guarded."""
    folder = Path(words[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    adopt_orphans()
    process = subprocess.Popen(
        words[2:],
        env=os.environ | {FOLDER: str(folder)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_before,
    )
    over = threading.Event()

    def end(number: signal.Signals) -> None:
        if not over.is_set():
            os.kill(process.pid, number)

    def listen() -> None:
        if grace := os.read(0, 64):
            end(signal.SIGTERM)
            over.wait(float(grace))
        end(signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    code = _reaped(process.pid)
    found = Exit(code, time.perf_counter())
    over.set()
    write_whole(folder / _REPORT, json.dumps(found._asdict()).encode(), flush=False)
    kill_found(lambda: [*_descendants(), *with_variable(FOLDER, str(folder))])
    os._exit(0)  # the thread may still be reading


def _reaped(pid: int) -> int:
    """Wait for a child, and return its exit code; meanwhile reap adopted processes."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _descendants() -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process().children(recursive=True)
        if each.status() != psutil.STATUS_ZOMBIE
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
