"""Start an agent's child processes, and end them and their descendants, by process id only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from raysuite.cluster.process import adopt_orphans, end_with_parent


class Children:
    """The agent's children by name. Descendants whose parent ends become children of the agent."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the children's working folder."""
        self._folder = folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        adopt_orphans()

    def start(
        self, name: str, words: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        """Start a process in a new session; it writes to `log`, and ends with the agent."""
        descriptor = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            self._started[name] = subprocess.Popen(
                words,
                env=dict(environment),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,  # Ray's reaper kills its own process group
                preexec_fn=_before_it_runs,
            )
        finally:
            os.close(descriptor)

    def pid(self, name: str) -> int:
        return self._started[name].pid

    def status(self, name: str) -> int | None:
        """The exit status of a child; None while it runs."""
        return self._started[name].poll()

    def how_ended(self, name: str) -> str:
        """How a child ended: its signal or exit status."""
        status = self._started[name].wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def end(self, name: str, patience_s: float) -> None:
        """End a child and its descendants."""
        process = self._started.pop(name, None)
        if process is None:
            return
        below = _below(process.pid)
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        _end([*below, *_of_session(process.pid)], 2.0)
        if process.poll() is None:
            process.kill()
            process.wait()

    def end_all(self, patience_s: float) -> None:
        """End all children, and then all other descendants of this process."""
        for process in self._started.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + patience_s
        for process in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        self._started.clear()
        while below := _below(os.getpid()):  # a process may fork while it is being ended
            _end(below, 3.0)
            self.reap()

    def reap(self) -> None:
        """Reap descendants that this process has adopted and that have ended."""
        ours = {process.pid for process in self._started.values()}
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.pid not in ours and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)


def _before_it_runs() -> None:
    # SLURM may send its warning signal to every process of a step: only the agent handles it
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    end_with_parent()


def _below(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _of_session(leader: int) -> list[psutil.Process]:
    """Descendants of this process in the session of `leader`, even if `leader` has ended."""
    found = []
    for process in _below(os.getpid()):
        with contextlib.suppress(OSError):
            if process.pid != leader and os.getsid(process.pid) == leader:
                found.append(process)
    return found


def _end(processes: Sequence[psutil.Process], patience_s: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(processes, patience_s)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, patience_s)
