"""A user's working folder, the commands she gives there, and the processes that come of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil

from raysuite.orchestrate.groups import checkpoint_folder
from raysuite.records import Results
from raysuite.records.journal import recorded_epochs
from raysuite.train.checkpoint import latest_checkpoint
from tests.waiting import TIMEOUT_S, until

ROOT = Path(__file__).parents[2]


class Command:
    """One command that was started, in a session of its own, its output in files."""

    def __init__(
        self, words: list[str], folder: Path, environment: dict[str, str], terminal: bool = False
    ) -> None:
        """In a `terminal`, its output goes there alone."""
        self._out, self._err = folder / "stdout", folder / "stderr"
        self.terminal = -1
        with ExitStack() as stack:
            out: Any = stack.enter_context(self._out.open("wb"))
            err: Any = stack.enter_context(self._err.open("wb"))
            if terminal:
                self.terminal, err = os.openpty()
                out = err
                stack.callback(os.close, err)
                words = ["setsid", "--ctty", "--wait", *words]
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=err if terminal else None,
                stdout=out,
                stderr=err,
                start_new_session=not terminal,
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def stderr(self) -> str:
        return self._err.read_text("utf-8")

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def family(self) -> set[psutil.Process]:
        """It and every process that came of it, as far as it still belongs to its session."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.process.pid:
                    found.add(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= set(psutil.Process(self.process.pid).children(recursive=True))
        return found

    def end(self) -> None:
        """Kill what is left of it."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


class Workplace:
    """A folder with `own.py` in it. Results and mlflow.db come to lie there too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commands: list[Command] = []
        # a driver that is killed leaves Ray's files there; the paths of its sockets must be short
        self.temporary = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
        shutil.copy(Path(__file__).with_name("own.py"), folder)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, "utf-8")

    def start(
        self, *words: str, folder: Path | None = None, terminal: bool = False, **variables: str
    ) -> Command:
        """`raysuite WORDS`, or another command of this environment, here or in another folder."""
        left_out = ("MLFLOW_TRACKING_URI", "PYTHONPATH", "FORCE_COLOR")
        left_out += ("RAYSUITE_CLUSTER", "RAYSUITE_INTERFACE")
        environment = {
            name: value
            for name, value in os.environ.items()
            # what a Ray of this process's own was told is nothing to another
            if name not in left_out and not name.startswith("RAY_")
        }
        program = Path(sys.executable).with_name(words[0])
        # Ray itself gives up after a minute
        patience = {"RAY_raylet_start_wait_time_s": str(TIMEOUT_S)}
        environment |= {"TMPDIR": str(self.temporary), **patience, **variables}
        arguments = [str(program), *words[1:]]
        command = Command(arguments, folder or self.folder, environment, terminal)
        self._commands.append(command)
        return command

    def run(self, *words: str, code: int = 0, **variables: str) -> Command:
        """The same, waited for."""
        command = self.start(*words, **variables)
        found = command.wait()
        assert found == code, f"exit code {found}\n{command.stdout}\n{command.stderr}"
        return command

    def results(self) -> Results:
        """The newest."""
        return Results.open(self.folder / "results")

    def query(self, question: str) -> list[tuple[Any, ...]]:
        """Ask MLflow's database."""
        with closing(sqlite3.connect(self.folder / "mlflow.db", timeout=120)) as connection:
            return connection.execute(question).fetchall()

    def held(self, command: Command) -> psutil.Process:
        """Wait until a worker of `command` holds."""
        file = self.folder / "held"
        until(lambda: file.exists() or command.process.poll() is not None)
        assert command.process.poll() is None, command.stdout + command.stderr
        worker = psutil.Process(int(file.read_text()))
        file.unlink()
        assert worker.name().startswith("ray::RayTrainWorker")
        return worker

    def close(self) -> None:
        for command in self._commands:
            command.end()
        shutil.rmtree(self.temporary, ignore_errors=True)


def until_ended(processes: Iterable[psutil.Process], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until none of them runs; fail with those that go on."""
    deadline = time.monotonic() + timeout_s
    while going_on := alive(processes):
        assert time.monotonic() < deadline, f"still there after {timeout_s} s: {going_on}"
        time.sleep(0.05)


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie does not."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def name_of(process: psutil.Process) -> str:
    """Empty where it has ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def has_checkpoint(results: Results, run_id: str) -> bool:
    """Whether this run has a checkpoint from which it is resumed."""
    epochs = recorded_epochs(results.records(run_id))
    found, _ = latest_checkpoint(checkpoint_folder(results, run_id), run_id, epochs)
    return found is not None
