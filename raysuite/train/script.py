"""One rank of an unchanged training script: `python -m raysuite.train.script train.py`.

The script runs as `__main__`, as without raysuite; `raysuite.measure.script_steps` measures its
steps. The script's output goes to a named pipe that the launcher reads. Horovod, which has its own
launcher, gets its rank from torchrun's variables.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import runpy
import socket
import sys
import time
import types
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raysuite.cluster.process import age_s
from raysuite.measure.script_steps import Recorder, observe, rank_file, status_bytes

SETTINGS = "RAYSUITE_SCRIPT"
"""Environment variable with the settings of a run, as JSON: the folder of the ranks' files, the
number of steps to check, whether energy is measured, the steps to profile, and the time at which
the ranks were launched."""


def output_file(folder: Path, rank: int) -> Path:
    """The path of the named pipe for a rank's output; the pipe exists only if the launcher made
    it."""
    return folder / f"output-{rank}"


SETTLING_STEPS = 2
"""Number of profiled steps before the measured steps, because the first calls under a profiler are
slower."""


class _Profile:
    """Profiles some steps of a script. The profiled steps do not count for the throughput."""

    def __init__(self, recorder: Recorder, first: int, steps: int, trace: str) -> None:
        from torch.profiler import record_function

        from raysuite.measure.shares import DATA

        self._recorder, self._first, self._steps, self._trace = recorder, first, steps, trace
        self._open = ExitStack()
        self._began = 0.0
        self._profiler: Any = None
        recorder.on_step = self._step
        recorder.on_read = lambda: record_function(DATA)

    def _step(self, number: int) -> None:
        import torch
        from torch.profiler import record_function

        from raysuite.measure.clock import now
        from raysuite.measure.shares import WINDOW, Profiler

        device = torch.device("cuda" if self._recorder.on_device else "cpu")
        if number == self._first:
            self._began = time.perf_counter()
            self._profiler = Profiler(device)
            self._open.enter_context(self._profiler.watching())
        elif number == self._first + SETTLING_STEPS:
            now(device)
            self._open.enter_context(record_function(WINDOW))
        elif number == self._first + SETTLING_STEPS + self._steps:
            now(device)
            self._open.close()
            self._recorder.on_step, self._recorder.on_read = None, nullcontext
            self._end()

    def _end(self) -> None:
        from raysuite.measure.shares import parts_of
        from raysuite.parallel.marks import COMMUNICATION

        parts = parts_of(self._profiler.events(), COMMUNICATION)
        if self._trace and os.environ["RANK"] == "0":
            self._profiler.write_trace(Path(self._trace))
        seconds = time.perf_counter() - self._began
        self._recorder.add("profile", {**asdict(parts), "seconds": seconds})


class _Horovod(importlib.abc.MetaPathFinder):
    """Sets Horovod's variables before Horovod is first imported."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._server: Any = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "horovod.torch" and self in sys.meta_path:
            from raysuite.parallel.horovod import join_from_torchrun

            sys.meta_path.remove(self)
            self._server = join_from_torchrun(self._rank, self._size)


def _redirect(pipe: Path) -> None:
    """Send the output of this process and its children to the launcher."""
    if pipe.exists():
        descriptor = os.open(pipe, os.O_WRONLY)
        for each in (1, 2):
            os.dup2(descriptor, each)
        os.close(descriptor)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def run_script(words: Sequence[str]) -> None:
    """Run a file, or `-m` and a module, as `__main__` with its arguments."""
    if words[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    file = os.path.abspath(words[0])
    sys.argv, sys.path[0] = list(words), os.path.dirname(file)
    # not runpy.run_path, which removes the module at the end, before atexit functions run
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=words[0], __builtins__=__builtins__, __spec__=None)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    sys.modules["__main__"] = main
    exec(compile(Path(file).read_bytes(), file, "exec"), main.__dict__)


def _is_peer_loss(error: BaseException) -> bool:
    from raysuite.train.world import is_peer_loss  # imported only when an error was raised

    return is_peer_loss(error)


def main() -> None:
    """Run and measure the script given on the command line."""
    settings = json.loads(os.environ.pop(SETTINGS))
    folder, rank = Path(settings["folder"]), int(os.environ["RANK"])
    _redirect(output_file(folder, rank))
    started = time.perf_counter() - age_s(os.getpid())
    recorder = Recorder(rank_file(folder, rank), settings["check"], settings["power"])
    recorder.marks = {"process": started, "launcher": settings["launched"]}
    recorder.add(
        "begin",
        {
            "rank": rank,
            "launched": settings["launched"],
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "world": int(os.environ["WORLD_SIZE"]),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "memory": status_bytes("VmRSS"),
        },
    )
    if settings["profile"]:
        _Profile(recorder, **settings["profile"])
    sys.meta_path.insert(0, _Horovod(rank, int(os.environ["WORLD_SIZE"])))
    error: BaseException | None = None
    try:
        with observe(recorder):
            run_script(sys.argv[1:])
    except BaseException as raised:
        error = raised
        raise
    finally:
        recorder.end(error, error is not None and _is_peer_loss(error))


if __name__ == "__main__":
    main()
