"""Find a process by its stored id and start time; end processes and their children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START = 19
"""Index of starttime, field 22 of /proc/PID/stat, counted from field 3 (proc_pid_stat(5))."""


def birth_of(pid: int) -> str:
    """An id that no later process with this pid has: the boot's id and the clock tick of the start.

    Unlike psutil's `create_time`, it does not change with the system clock. Empty if the process
    has ended.
    """
    with contextlib.suppress(OSError):
        return f"{_BOOT.read_text('ascii').strip()}:{_start_ticks(pid)}"
    return ""


def age_s(pid: int) -> float:
    """Seconds since a process was started, with a resolution of 10 ms; on Linux only. Raises
    OSError if the process has ended. (psutil's start times have errors of up to a second, because
    its boot time is in whole seconds.)"""
    since_boot = _start_ticks(pid) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot


def _start_ticks(pid: int) -> int:
    said = Path(f"/proc/{pid}/stat").read_bytes()
    return int(said.rpartition(b")")[2].split()[_START])  # the name before `)` may contain anything


def find_process(pid: int, birth: str) -> psutil.Process | None:
    """The process with this id, if its `birth_of` is `birth`; None if the process has ended, even
    if another process has its id now."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if birth_of(pid) == birth and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


TEMP = "RAY_TMPDIR"
"""Environment variable with a node's temporary folder, for all processes of Ray on the node."""
LOCK = "lock"
"""A file in a temporary folder, locked by the folder's process. Other processes of the same user,
including Ray's workers, open the file in order to remove abandoned folders."""


class ProcessTree(subprocess.Popen[bytes]):
    """A process in its own process group. `terminate` kills the process and all its children at
    once: after SIGTERM, Ray would wait a second for each of its processes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, process_group=0, **options)

    def terminate(self) -> None:
        """End the process and its children, some of which have their own process groups."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            process.suspend()  # it must not start other processes meanwhile
            for each in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


_DIES_S = 10.0
"""Longest wait for the end of killed processes, in seconds."""


def kill_left_behind(temp: str) -> list[int]:
    """Kill the processes that still use `temp`, the temporary folder of an ended node. Wait until
    they have ended, for at most _DIES_S, and return their ids.

    Some of the processes end by themselves meanwhile: Ray's workers end with their raylet.
    """
    return kill_found(lambda: _left_behind(temp))


def kill_found(find: Callable[[], Sequence[psutil.Process]]) -> list[int]:
    """Kill the processes that `find` returns, and call `find` again until it returns none, for at
    most _DIES_S. Return the ids of the killed processes."""
    killed: list[int] = []
    deadline = time.monotonic() + _DIES_S
    while (found := find()) and time.monotonic() < deadline:  # a process may fork meanwhile
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed.append(process.pid)
        psutil.wait_procs(found, deadline - time.monotonic())
    return killed


def with_variable(name: str, value: str) -> list[psutil.Process]:
    """All processes of this user whose environment variable `name` is `value`."""
    found = []
    for process in _of_this_user():
        with contextlib.suppress(psutil.Error):
            zombie = process.status() == psutil.STATUS_ZOMBIE
            if not zombie and process.environ().get(name) == value:
                found.append(process)
    return found


def _of_this_user() -> Iterator[psutil.Process]:
    psutil.process_iter.cache_clear()  # the cache contains ended processes, whose ids may be reused
    for process in psutil.process_iter(["uids"]):
        if process.info["uids"] and process.info["uids"].real == os.getuid():
            yield process


def _left_behind(temp: str) -> list[psutil.Process]:
    """Processes of an ended node that still use its temporary folder.

    A user's `tail -f` on a log in the folder does not count: it did not inherit the node's
    variables. A process that Ray has renamed (`ray::NAME`) no longer shows its arguments and
    variables, so it is recognised by its open files in the folder.
    """
    found = []
    inside = f"{temp}/"
    for process in _of_this_user():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline() or [""]
            if words[0].startswith("ray::"):
                paths = {file.path for file in process.open_files()} - {f"{inside}{LOCK}"}
                works = any(path.startswith(inside) for path in paths)
            else:
                named = any(inside in word for word in words)
                works = named and process.environ().get(TEMP) == temp
            if works:
                found.append(process)
    return found


_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Let the kernel send this child process a signal when its parent ends. Linux only."""
    if sys.platform == "linux":
        _LIBC.prctl(_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends. Linux only."""
    _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def in_order() -> Iterator[None]:
    """Within the context, turn SIGHUP and SIGTERM into exits that run every `finally`.

    An ignored signal, as under nohup, stays ignored. Call it in the main thread.
    """
    found = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    before = {number: each for number, each in found.items() if each != signal.SIG_IGN}

    def leave(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # a closing terminal sends SIGHUP more than once
        sys.exit(128 + number)

    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)
