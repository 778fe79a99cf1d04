"""Which parts of the installation work: each is tried in a process of its own, under a deadline."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from raysuite.measure.trials import MARK, MISSING
from raysuite.parts import PARTS, Part

_AT_ONCE = 2
"""Trials run side by side: each starts up to three processes, and a laptop should stay usable."""


class State(StrEnum):
    """What a trial found."""

    WORKS = "works"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """What trying one part gave."""

    name: str
    version: str
    state: State
    note: str
    mend: str
    """Empty where the part works."""
    required: bool
    seconds: float

    @property
    def bad(self) -> bool:
        """Whether it stands in the way: broken, or required and missing."""
        return self.state is State.BROKEN or (self.required and self.state is State.MISSING)


TRIED = tuple(part for part in PARTS if part.title)
_PYTHON = Part("python", "python", install="make setup PYTHON=/path/to/python3.11")
_COMPILER = Part(
    "compiler",
    "C++ compiler",
    required=False,
    install="apt-get install g++ (Debian, Ubuntu), then make setup",
)
_STORE = Part("store", "MLflow store", install="run in a folder that you may write to")


def try_parts() -> Iterator[Finding]:
    """Findings in the order of the table, each as soon as it and those before it are known."""
    yield look(_PYTHON, _python)
    yield look(_COMPILER, _compiler)
    yield look(_STORE, _store)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(try_part, TRIED)


def try_part(part: Part) -> Finding:
    """Run a part's trial in a process group of its own; past its deadline the group is killed."""
    started = time.monotonic()
    command = [sys.executable, "-m", "raysuite.measure.trials", part.name]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=part.deadline_s)
        note = _marked(output if process.returncode == 0 else errors)
        state = {0: State.WORKS, MISSING: State.MISSING}.get(process.returncode, State.BROKEN)
        if state is State.BROKEN and not note:
            note = _death(process.returncode, errors)
    except subprocess.TimeoutExpired:
        state, note = State.BROKEN, f"no answer within {part.deadline_s:g} s"
    finally:
        _end_group(process)
    return _finding(part, _version(part), state, note, time.monotonic() - started)


def look(part: Part, see: Callable[[], tuple[str, State, str]]) -> Finding:
    """A finding of this process: `see` gives version, state and note."""
    started = time.monotonic()
    version, state, note = see()
    return _finding(part, version, state, note, time.monotonic() - started)


def _finding(part: Part, version: str, state: State, note: str, seconds: float) -> Finding:
    mend = "" if state is State.WORKS else part.install
    return Finding(part.title, version, state, note, mend, part.required, round(seconds, 1))


def _version(part: Part) -> str:
    try:
        return importlib.metadata.version(part.distribution) if part.distribution else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _marked(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    return lines[-1].removeprefix(MARK) if lines else ""


def _death(status: int, errors: str) -> str:
    lines = errors.strip().splitlines()
    said = f": {lines[-1]}" if lines else ""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}{said}"
    return f"exit status {status}{said}"


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a trial: a hanging rank, a half-started Ray."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _python() -> tuple[str, State, str]:
    fits = (3, 11) <= sys.version_info < (3, 14)
    note = "" if fits else "raysuite needs Python 3.11 to 3.13"
    return platform.python_version(), State.WORKS if fits else State.BROKEN, note


def _compiler() -> tuple[str, State, str]:
    command = os.environ.get("CXX", "g++")
    path = shutil.which(command)
    if path is None:
        return "", State.MISSING, f"no {command}: `make setup` cannot build Horovod"
    answer = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return answer.stdout.strip(), State.WORKS, path


def _store() -> tuple[str, State, str]:
    """Whether a run in this folder can write the SQLite store `mlflow.db`."""
    if server := os.environ.get("MLFLOW_TRACKING_URI"):
        return "", State.WORKS, f"MLFLOW_TRACKING_URI={server}"
    path = Path("mlflow.db").resolve()
    if not path.exists():
        writable = os.access(path.parent, os.W_OK)
        return "", State.WORKS if writable else State.BROKEN, f"{path}, not made yet"
    try:
        address = f"{path.as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=5)) as store:
            store.execute("BEGIN IMMEDIATE")
            store.rollback()
    except sqlite3.Error as error:
        return "", State.BROKEN, f"{path}: {error}"
    return "", State.WORKS, str(path)
