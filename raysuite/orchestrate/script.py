"""A training script of the user's own on this machine, by torch's launcher, one run at a time.

Each rank writes what it measured into its own file, and its output into a named pipe, of which the
driver keeps the end. When a run is over, or must be, no process of it is left: neither ranks that
ignore SIGTERM nor what they started.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from raysuite.cluster import private
from raysuite.cluster.ports import held_port
from raysuite.cluster.process import end_with_parent, kill_found
from raysuite.files import write_whole
from raysuite.measure.environment import environment
from raysuite.measure.script import rank_file
from raysuite.orchestrate import budget
from raysuite.orchestrate.stopping import requested_stop
from raysuite.plan import RunPlan
from raysuite.records import (
    GateVerdict,
    Journal,
    Record,
    Results,
    RunFailed,
    RunStarted,
    ScriptMeasured,
)
from raysuite.records.ends import is_left
from raysuite.records.names import series_key
from raysuite.records.schema import SCHEMA
from raysuite.records.script import RankLog, script_records, steps_of, time_shares, too_few, verdict
from raysuite.spec.script import numbers_of
from raysuite.train.script import SETTINGS, SETTLING_STEPS, output_file

_POLL_S = 0.2
_GRACE_S = 10.0
"""From SIGTERM to SIGKILL."""
_FOLDER = "RAYSUITE_SCRIPT_FOLDER"
"""Variable by which processes of a run are found, whoever started them."""
_KEPT_BYTES = 64 * 1024
"""Of the end of a rank's output."""
_TAIL_LINES = 20
_TRACE = "trace.json.gz"
_MODULE = "raysuite.train.script"
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
"""Of torch's report of a failure (torch.distributed.elastic.multiprocessing.errors)."""


class ScriptRuns:
    """The runs of a script, to be called like a trainer: `fit` returns once all have ended."""

    def __init__(self, plans: Sequence[RunPlan], results: Results) -> None:
        self._plans, self._results = plans, results
        self._halted, self._over = threading.Event(), threading.Event()

    def halt(self) -> None:
        """End the run under way, and begin no other; return once that is so."""
        self._halted.set()
        self._over.wait(2 * _GRACE_S)

    def _is_ending(self) -> bool:
        return self._halted.is_set() or requested_stop(self._results.folder) is not None

    def fit(self) -> None:
        try:
            for plan in self._plans:
                if self._is_ending():
                    return
                left = is_left(self._results.end_of(plan.run_id))
                if left and budget.allows(self._results, plan):
                    run_script(plan, self._results, self._is_ending)
        finally:
            self._over.set()


def run_script(plan: RunPlan, results: Results, ending: Callable[[], bool]) -> None:
    """Run one plan's script and write its Records into its journal.

    A run that `ending` ends has no end in its journal: it is resumed from its beginning.
    """
    journal = Journal(results.journal_file(plan.run_id))
    started = RunStarted(
        run_id=plan.run_id,
        record_schema=SCHEMA,
        plan=plan.model_dump(mode="json"),
        environment=environment(),
    )
    journal.write(started)
    for record in _records(plan, results, ending):
        journal.write(record)


def _records(plan: RunPlan, results: Results, ending: Callable[[], bool]) -> list[Record]:
    folder = results.journal_file(plan.run_id).parent
    script = plan.spec.script
    assert script is not None
    names = numbers_of(plan.workers)
    with private.temporary_folder("rs-script-") as scratch:
        outputs = [output_file(scratch, rank) for rank in range(plan.workers)]
        began = time.perf_counter()
        with _kept_outputs(outputs) as (kept, stream), held_port() as port:
            process = subprocess.Popen(
                [*_launcher(plan.workers, port), *script.words(names)],
                env=_environment(plan, scratch, began, folder / _TRACE) | script.variables(names),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the driver's to handle
                preexec_fn=end_with_parent,
            )
            why = _wait(process, scratch, plan, ending)
            _end(process, scratch)
        logs = [RankLog.read(rank_file(scratch, rank)) for rank in range(plan.workers)]
    for rank, content in enumerate(kept.values()):
        name = f"rank-{rank}.log" if rank < plan.workers else "launcher.log"
        write_whole(folder / name, bytes(content), flush=False)
    if ending():
        return []
    code = process.returncode
    measure = plan.spec.measure
    first = measure.warmup_steps + 1 + SETTLING_STEPS
    profiled = measure.profile == "torch"
    # the step after the profile waits for it to end
    warmup = first + measure.profile_steps + 1 if profiled else measure.warmup_steps
    steps = steps_of(logs, warmup)
    rank, words = _failure(logs, list(kept.values())[-1], code)
    why = why or words or too_few(steps, warmup, code)
    if why:
        place = min(rank, plan.workers - 1)
        tail = list(kept.values())[place].decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return [
            RunFailed(
                run_id=plan.run_id,
                reason="error",
                message=why,
                detail="\n".join([f"end of the output of rank {place}:", *tail]),
            )
        ]
    samples = script.samples(names)
    found: GateVerdict | None = None
    notes: list[str] = []
    if script.check and plan.workers > 1:
        found, notes = verdict(plan.run_id, logs, steps, samples, _alone(plan, results))
    if found is not None and not found.passed:
        failed = RunFailed(run_id=plan.run_id, reason="gate", message=found.message)
        return [found, failed]
    checked: list[Record] = [] if found is None else [found]
    if profiled:
        shares = time_shares(plan.run_id, logs, measure.profile_steps, first, _TRACE)
        checked.append(shares)
    return [*checked, *script_records(plan.run_id, logs, steps, samples, began, notes)]


def _alone(plan: RunPlan, results: Results) -> list[ScriptMeasured]:
    """What was measured of the same script with one worker, so far."""
    own = series_key(plan.model_dump(mode="json"))
    return [
        record
        for each in results.plans()
        if int(each["workers"]) == 1 and series_key(each) == own
        for record in results.records(each["run_id"])
        if isinstance(record, ScriptMeasured)
    ]


def _launcher(workers: int, port: int) -> list[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"]
    return [*words, "--nproc-per-node", str(workers), "--master-port", str(port), "-m", _MODULE]


def _environment(plan: RunPlan, folder: Path, began: float, trace: Path) -> dict[str, str]:
    """The same number of threads in each rank, whatever the number of ranks: torch's launcher sets
    it for several ranks only."""
    script = plan.spec.script
    assert script is not None
    settings: dict[str, Any] = {
        "folder": str(folder),
        "check": script.check,
        "launched": began,
        "profile": None,
    }
    measure = plan.spec.measure
    if measure.profile == "torch":
        settings["profile"] = {
            "first": measure.warmup_steps + 1,
            "steps": measure.profile_steps,
            "trace": str(trace),
        }
    own = {SETTINGS: json.dumps(settings), _FOLDER: str(folder), "PYTHONUNBUFFERED": "1"}
    threads = {"OMP_NUM_THREADS": str(plan.spec.resources.cpus_per_worker)}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if plan.device == "cpu" else {}
    return {**threads, **os.environ, **hidden, **own}


def _wait(
    process: subprocess.Popen[bytes], folder: Path, plan: RunPlan, ending: Callable[[], bool]
) -> str:
    """Wait for the launcher; why it must be ended before, or nothing."""
    script = plan.spec.script
    assert script is not None
    files = [rank_file(folder, rank) for rank in range(plan.workers)]
    size, moved = -1, time.monotonic()
    while process.poll() is None and not ending():
        time.sleep(_POLL_S)
        now = sum(file.stat().st_size for file in files if file.exists())
        if now != size:
            size, moved = now, time.monotonic()
        if time.monotonic() - moved > script.stall_s:
            numbers = [len(RankLog.read(file).rows) for file in files]
            listed = ", ".join(f"rank {rank}: {number}" for rank, number in enumerate(numbers))
            return (
                f"no rank took a step for {script.stall_s:g} s (steps so far: {listed}): a rank "
                "hangs, or a step is longer; --stall SECONDS sets the limit"
            )
    return ""


def _failure(logs: Sequence[RankLog], launcher: bytes | bytearray, code: int) -> tuple[int, str]:
    """The rank that failed first and what it ended with; no words where none did."""
    errors = {
        rank: (log.marks.get("ended", math.inf), str(log.end["error"]))
        for rank, log in enumerate(logs)
        if log.end.get("error")
    }
    if code == 0:
        return 0, ""
    root = _ROOT_CAUSE.search(launcher.decode(errors="replace"))
    if root and int(root[1]) not in errors:
        return int(root[1]), f"rank {root[1]} ended with {_exit(int(root[2]))}"
    if errors:
        rank = min(errors, key=lambda each: errors[each])
        return rank, f"rank {rank}: {errors[rank][1]}"
    return len(logs), f"torch's launcher ended with {_exit(code)}"


def _exit(code: int) -> str:
    """An exit code, by the signal's name where one ended it."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"{signal.Signals(-code).name} ({code})"
    return f"exit code {code}"


@contextmanager
def _kept_outputs(pipes: Sequence[Path]) -> Iterator[tuple[dict[int, bytearray], int]]:
    """Keep the end of what is written into each of the pipes, which are made, and into one more.

    Yields the contents, by descriptor, in the order of the pipes and that one last; and the
    descriptor into which the latter's is written. A flood of output fills no disk, and blocks
    nobody.
    """
    kept: dict[int, bytearray] = {}
    closed = threading.Event()
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for pipe in pipes:
            os.mkfifo(pipe, 0o600)
            # opened for writing too: it has no end, however many ranks close it
            descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            kept[descriptor] = bytearray()
        reads, writes = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, reads)
        opened.callback(os.close, writes)
        os.set_blocking(reads, False)
        kept[reads] = bytearray()
        for descriptor in kept:
            selector.register(descriptor, selectors.EVENT_READ)

        def drain() -> None:
            while True:
                ready = selector.select(_POLL_S)
                for key, _ in ready:
                    content = kept[key.fd]
                    with contextlib.suppress(BlockingIOError):
                        content += os.read(key.fd, _KEPT_BYTES)
                    del content[:-_KEPT_BYTES]
                if not ready and closed.is_set():
                    return

        reader = threading.Thread(target=drain, name="script-output", daemon=True)
        reader.start()
        try:
            yield kept, writes
        finally:
            closed.set()
            reader.join()


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Have no process of a run left."""
    if process.poll() is None:
        process.terminate()  # torch's launcher hands it on to its ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    kill_found(lambda: _left(folder))
    process.wait()


def _left(folder: Path) -> list[psutil.Process]:
    """The processes of a run, whoever started them."""
    found = []
    for each in psutil.process_iter(["uids"]):
        if each.info["uids"] and each.info["uids"].real == os.getuid():
            with contextlib.suppress(psutil.Error):
                zombie = each.status() == psutil.STATUS_ZOMBIE
                if not zombie and each.environ().get(_FOLDER) == str(folder):
                    found.append(each)
    return found
