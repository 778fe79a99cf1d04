"""A guarded command and what it starts: both end with the command, on request, and with whoever
started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raysuite.cluster import guard
from raysuite.cluster.process import with_variable
from tests.waiting import until

CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True); "
STUBBORN = (
    f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {CHILD}"
    "open(sys.argv[1], 'w').close(); time.sleep(600)"
)
GONE_S = 30.0


def left(folder: Path) -> list[psutil.Process]:
    return with_variable(guard.FOLDER, str(folder))


@pytest.mark.parametrize(
    ("code", "ends"),
    [("sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_the_end_of_a_command_is_reported_and_ends_what_it_started(
    code: str, ends: int, tmp_path: Path
) -> None:
    # one that no variable names, and whose parent is gone
    nameless = f"{600 + os.getpid() / 1e7:.7f}"
    orphan = f"import subprocess; subprocess.Popen(['sleep', '{nameless}'], env={{}})"
    child = f"{CHILD}subprocess.run([sys.executable, '-c', {orphan!r}], start_new_session=True); "
    with (tmp_path / "output").open("wb") as output:
        words = [sys.executable, "-c", child + code]
        began = guard.start(words, tmp_path, output.fileno(), os.environ)
        assert os.getsid(began.pid) == began.pid, "Ctrl-C in the terminal does not reach it"
        found = guard.ended(began, tmp_path)
    assert found.code == ends
    assert not [
        each
        for each in psutil.process_iter(["cmdline"])
        if nameless in (each.info["cmdline"] or [])
    ]
    assert 0 <= time.perf_counter() - found.at < GONE_S
    assert left(tmp_path) == []


@pytest.mark.parametrize("how", ["asked", "its guard killed"])
def test_a_command_that_ignores_sigterm_ends(how: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with (tmp_path / "output").open("wb") as output:
        words = [sys.executable, "-c", STUBBORN, str(ready)]
        began = guard.start(words, tmp_path, output.fileno(), os.environ)
        until(ready.exists)
        if how == "asked":
            guard.ask(began, 0.1)
        else:
            began.kill()
        found = guard.ended(began, tmp_path)
    assert found.code == -signal.SIGKILL
    assert left(tmp_path) == []


def test_a_command_ends_with_whoever_started_its_guard(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import os, sys, time; from pathlib import Path; from raysuite.cluster import guard\n"
        "guard.start(sys.argv[2:], Path(sys.argv[1]), 1, os.environ); time.sleep(600)"
    )
    command = [sys.executable, "-c", STUBBORN, str(ready)]
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *command])
    try:
        until(ready.exists)
        assert len(left(tmp_path)) == 2
    finally:
        starter.kill()
        starter.wait()
    until(lambda: not left(tmp_path))
