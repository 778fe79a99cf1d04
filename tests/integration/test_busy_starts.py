"""Starts of Ray on a busy machine: each trains, and none leaves a process or an open folder."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from raysuite.cluster.process import end_with_parent
from tests.integration.workplace import ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.timeout(1500),
]

LOOPS, STARTS, AT_ONCE = 8, 20, 4
GONE_S = 3.0
"""For processes that were killed to be gone."""
SPEC = """
name: busy
model: tests.tiny_model:Tiny
data: digits
training: {epochs: 1, global_batch: 240}
strategy: ddp
resources: {device: cpu, workers: 2}
"""
SLOW = """
import sys, time
with open("/proc/self/cmdline", "rb") as file:
    words = file.read()
if b"/agent.py" in words or b"/agent/main.py" in words:
    HOW
"""


@pytest.fixture
def loops() -> Iterator[None]:
    words = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(words, preexec_fn=end_with_parent) for _ in range(LOOPS)]
    yield
    for each in running:
        each.kill()
        each.wait()


class Place:
    """A working folder, and a temporary folder that nothing else uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modes: set[int] = set()
        """Of all folders that were seen in the temporary one."""
        self.temp = Path(tempfile.mkdtemp(prefix="b-", dir="/tmp"))  # sockets need short paths
        (folder / "spec.yaml").write_text(SPEC)

    def start(self, agents: str = "") -> subprocess.Popen[str]:
        """`raysuite run`; `agents` is what Ray's agents do first."""
        (self.folder / "sitecustomize.py").write_text(SLOW.replace("HOW", agents or "pass"))
        path = os.pathsep.join(map(str, (self.folder, ROOT)))
        return subprocess.Popen(
            [sys.executable, "-m", "raysuite", "run", "spec.yaml", "--no-mlflow", "--quiet"],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.temp), "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def look(self) -> list[Path]:
        """The temporary folders of Ray that are there now."""
        found = []
        for path in self.temp.glob("rs-*"):
            try:
                self.modes.add(stat.S_IMODE(path.stat().st_mode))
            except FileNotFoundError:
                continue
            found.append(path)
        return found

    def watched(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """The exit code and the errors of a command, while its folders' modes are looked at."""
        while process.poll() is None:
            self.look()
            time.sleep(0.02)
        return process.returncode, process.communicate()[1]

    def processes(self) -> list[list[str]]:
        """Command lines of processes that work in the temporary folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if any(str(self.temp) in word for word in words):
                found.append(words)
        return found

    def left(self) -> tuple[list[Path], list[list[str]]]:
        """Folders and processes that are still there after a moment."""
        _until(lambda: not self.processes(), GONE_S)
        return self.look(), self.processes()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    folders = [tmp_path / str(number) for number in range(AT_ONCE)]
    for folder in folders:
        folder.mkdir()
    made = [Place(folder) for folder in folders]
    yield made
    for place in made:
        shutil.rmtree(place.temp, ignore_errors=True)


@pytest.fixture
def place(places: list[Place]) -> Place:
    return places[0]


@pytest.mark.parametrize("number", range(STARTS // AT_ONCE))
def test_starts_beside_busy_loops_train_and_leave_nothing(
    places: list[Place], loops: None, number: int
) -> None:
    with ThreadPoolExecutor() as pool:
        ends = [*pool.map(lambda place: place.watched(place.start()), places)]
    assert [code for code, _ in ends] == [0] * AT_ONCE, "\n".join(text for _, text in ends)
    assert not any("Traceback" in errors for _, errors in ends)
    assert {mode for place in places for mode in place.modes} == {0o700}
    assert [place.left() for place in places] == [([], [])] * AT_ONCE


def test_a_start_with_slow_agents_trains(place: Place) -> None:
    code, errors = place.watched(place.start("time.sleep(20)"))
    assert code == 0, errors
    assert place.modes == {0o700}
    assert place.left() == ([], [])


def test_a_start_that_fails_is_one_error_and_leaves_nothing(place: Place) -> None:
    code, errors = place.watched(place.start("sys.exit('broken')"))
    assert code == 1, errors
    assert "Traceback" not in errors
    assert [line.split(":")[0] for line in errors.splitlines()][-1] == "error"
    assert place.modes == {0o700}
    assert place.left() == ([], [])


@pytest.mark.parametrize("after_s", [0.3, 2.0, 8.0])
def test_what_a_killed_start_leaves_is_closed_and_the_next_one_removes_it(
    place: Place, after_s: float
) -> None:
    process = place.start("time.sleep(2)")
    assert _until(lambda: any((folder / "r").exists() for folder in place.look()), 240)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed = place.look()
    assert killed
    code, errors = place.watched(place.start())
    assert code == 0, errors
    assert not any(folder.exists() for folder in killed)
    assert place.modes == {0o700}
    assert place.left() == ([], [])


def _until(true: Callable[[], object], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not (found := bool(true())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
