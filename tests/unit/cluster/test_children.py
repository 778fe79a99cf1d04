"""Ending what was started, all of it and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.waiting import until

PROGRAM = """
import os, sys, time
from pathlib import Path
from raysuite.cluster.agent.children import Children

folder = Path(sys.argv[1])
children = Children(folder)
shell = sys.argv[2]
children.start("shell", ["bash", "-c", shell], os.environ, folder / "log")
children.start("other", ["sleep", "600"], os.environ, folder / "log")
(folder / "started").touch()
while not (folder / "end").exists():
    time.sleep(0.05)
    children.reap()
exec(sys.argv[3])
(folder / "ended").touch()
time.sleep(600)
"""


def begin(
    tmp_path: Path, shell: str, end: str = "children.end_all(2.0)"
) -> subprocess.Popen[bytes]:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), shell, end])
    until((tmp_path / "started").exists)
    return program


def pids(tmp_path: Path, count: int) -> list[int]:
    file = tmp_path / "pids"
    until(lambda: file.exists() and len(file.read_text().split()) == count)
    return [int(word) for word in file.read_text().split()]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_orphans_and_processes_that_ignore_sigterm_are_ended(tmp_path: Path) -> None:
    # one daemon in a session of its own whose parent is gone, one that ignores SIGTERM
    shell = (
        '(setsid sleep 600 & echo $! >>pids) & bash -c \'trap "" TERM; echo $$ >>pids; '
        "while :; do sleep 1; done' & echo $$ >>pids; wait; sleep 600"
    )
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    program = begin(tmp_path, shell)
    try:
        started = pids(tmp_path, 3)
        assert not any(map(gone, started))
        (tmp_path / "end").touch()
        until((tmp_path / "ended").exists)
        until(lambda: all(map(gone, started)))
        assert psutil.Process(program.pid).children() == []
        assert stranger.poll() is None
    finally:
        for process in (program, stranger):
            process.kill()
            process.wait()


def test_a_child_ends_with_its_descendants_and_the_orphans_of_its_session(tmp_path: Path) -> None:
    shell = "(sleep 600 & echo $! >>pids) & sleep 600 & echo $! $$ >>pids; wait"
    program = begin(tmp_path, shell, "children.end('shell', 2.0)")
    try:
        started = pids(tmp_path, 3)
        (tmp_path / "end").touch()
        until((tmp_path / "ended").exists)
        assert all(map(gone, started))
        [other] = psutil.Process(program.pid).children()
        assert other.name() == "sleep"
    finally:
        program.kill()
        program.wait()


def test_children_end_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    program = begin(tmp_path, "echo $$ >pids; exec sleep 600")
    (child,) = pids(tmp_path, 1)
    program.kill()
    program.wait()
    until(lambda: gone(child))


def test_the_warning_of_slurm_does_not_end_them(tmp_path: Path) -> None:
    program = begin(tmp_path, "echo $$ >pids; exec sleep 600")
    try:
        (child,) = pids(tmp_path, 1)
        os.kill(child, signal.SIGUSR1)
        time.sleep(0.2)
        assert not gone(child)
    finally:
        (tmp_path / "end").touch()
        until(lambda: gone(child))
        program.kill()
        program.wait()
