"""Launch a user's own training script on this machine with torch's launcher; write the Records of a
script's run, including runs that `script_ranks` launched.

Each rank writes its measurements to its own file, and its output to a named pipe; the driver keeps
the tail of the output. When a run has ended, all its processes are killed, even ranks that ignore
SIGTERM, and their children.
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
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysuite.cluster import guard, private
from raysuite.cluster.ports import held_port
from raysuite.files import write_whole
from raysuite.measure.environment import environment
from raysuite.measure.script_steps import rank_file
from raysuite.orchestrate import budget
from raysuite.orchestrate.stopping import requested_stop
from raysuite.orchestrate.torchrun import launcher
from raysuite.plan import RunPlan
from raysuite.records import (
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
from raysuite.records.script_records import (
    RankLog,
    script_records,
    steps_of,
    time_shares,
    too_few,
    verdict,
)
from raysuite.spec.script import numbers_of
from raysuite.train.script import SETTINGS, SETTLING_STEPS, output_file

_POLL_S = 0.2
_KEPT_BYTES = 64 * 1024
"""Number of bytes that are kept from the end of each rank's output."""
_TAIL_LINES = 20
_TRACE = "trace.json.gz"
MODULE = "raysuite.train.script"
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
"""Rank and exit code in torch's report of a failure
(torch.distributed.elastic.multiprocessing.errors)."""


class ScriptRuns:
    """The runs of a script, with a trainer's interface: `fit` returns when all runs have ended."""

    def __init__(self, plans: Sequence[RunPlan], results: Results) -> None:
        self._plans, self._results = plans, results
        self._halted, self._over = threading.Event(), threading.Event()

    def halt(self) -> None:
        """End the current run and start no other; wait until the run has ended."""
        self._halted.set()
        self._over.wait(2 * guard.GRACE_S)

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

    If `ending()` becomes true, no end of the run is written into the journal: a resumed suite
    starts the run again from its beginning.
    """
    begin(plan, results)
    ended = _launch(plan, results, ending)
    if not ending():
        write_end(plan, results, ended)


def begin(plan: RunPlan, results: Results) -> None:
    """Write the Record of a run's start."""
    started = RunStarted(
        run_id=plan.run_id,
        record_schema=SCHEMA,
        plan=plan.model_dump(mode="json"),
        environment=environment(),
    )
    Journal(results.journal_file(plan.run_id)).write(started)


@dataclass(frozen=True)
class Ended:
    """A script's run that has ended."""

    logs: Sequence[RankLog]
    outputs: Sequence[bytes | bytearray]
    """The tail of each rank's output, and then of the launcher's output, if there is a launcher."""
    code: int = 0
    """Exit code of the launcher, or of the rank that failed first; 0 if all ranks succeeded."""
    died: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """Rank -> (exit code, seconds from launch to end; 0: unknown), for ranks that failed."""
    stalled: bool = False
    """Whether the run was ended because no rank took steps any longer."""
    nodes: int = 1


def _launch(plan: RunPlan, results: Results, ending: Callable[[], bool]) -> Ended:
    script = plan.spec.script
    assert script is not None
    names = numbers_of(plan.workers)
    with private.temporary_folder("rs-script-") as scratch:
        outputs = [output_file(scratch, rank) for rank in range(plan.workers)]
        with kept_outputs(outputs) as (kept, stream), held_port() as port:
            process = guard.start(
                [*launcher(plan.workers, port, scratch), "-m", MODULE, *script.words(names)],
                scratch,
                stream,
                variables(plan, results, scratch, names),
            )
            stalled = _wait(process, scratch, plan, ending)
            if process.poll() is None:
                guard.ask(process)  # torch's launcher forwards the request to its ranks
            code = guard.ended(process, scratch).code
        logs = [RankLog.read(rank_file(scratch, rank)) for rank in range(plan.workers)]
    tails = list(kept.values())
    root = _ROOT_CAUSE.search(tails[-1].decode(errors="replace"))
    died = {int(root[1]): (int(root[2]), 0.0)} if root else {}
    return Ended(logs, tails, code, died, stalled)


def write_end(plan: RunPlan, results: Results, ended: Ended) -> None:
    """Write an ended run's Records into its journal, and the tails of its outputs into files."""
    journal = Journal(results.journal_file(plan.run_id))
    folder = results.journal_file(plan.run_id).parent
    for rank, content in enumerate(ended.outputs):
        name = f"rank-{rank}.log" if rank < plan.workers else "launcher.log"
        write_whole(folder / name, bytes(content), flush=False)
    for record in _records(plan, results, ended):
        journal.write(record)


def _records(plan: RunPlan, results: Results, ended: Ended) -> list[Record]:
    script, logs = plan.spec.script, ended.logs
    assert script is not None
    measure = plan.spec.measure
    first = measure.warmup_steps + 1 + SETTLING_STEPS
    profiled = measure.profile == "torch"
    # the step after the profile waits for the profile to end
    warmup = first + measure.profile_steps + 1 if profiled else measure.warmup_steps
    steps = steps_of(logs, warmup)
    rank, words = _failure(ended)
    why = _stall(plan, logs) if ended.stalled else words or too_few(steps, warmup, ended.code)
    if why:
        # the launcher's output, the last one, does not show the cause of a stall
        place = min(rank, (plan.workers if ended.stalled else len(ended.outputs)) - 1)
        whose = f"rank {place}" if place < plan.workers else "torch's launcher"
        tail = ended.outputs[place].decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return [
            RunFailed(
                run_id=plan.run_id,
                reason="error",
                message=why,
                detail="\n".join([f"end of the output of {whose}:", *tail]),
            )
        ]
    samples = script.samples(numbers_of(plan.workers, ended.nodes))
    checked, notes = list[Record](), list[str]()
    if script.check and plan.workers > 1:
        found, notes = verdict(plan.run_id, logs, steps, samples, _alone(plan, results))
        if found is not None and not found.passed:
            failed = RunFailed(run_id=plan.run_id, reason="gate", message=found.message)
            return [found, failed]
        checked += [found] if found else []
    if profiled:
        checked.append(time_shares(plan.run_id, logs, measure.profile_steps, first, _TRACE))
    return [*checked, *script_records(plan.run_id, logs, steps, samples, notes)]


def _stall(plan: RunPlan, logs: Sequence[RankLog]) -> str:
    script = plan.spec.script
    assert script is not None
    listed = ", ".join(f"rank {rank}: {len(log.rows)}" for rank, log in enumerate(logs))
    return (
        f"no rank took a step for {script.stall_s:g} s (steps so far: {listed}): a rank hangs, or "
        "a step takes longer; --stall SECONDS sets the limit"
    )


def _alone(plan: RunPlan, results: Results) -> list[ScriptMeasured]:
    """The measurements of those runs of this script that have one worker and have ended."""
    own = series_key(plan.model_dump(mode="json"))
    return [
        record
        for each in results.plans()
        if int(each["workers"]) == 1 and series_key(each) == own
        for record in results.records(each["run_id"])
        if isinstance(record, ScriptMeasured)
    ]


def variables(
    plan: RunPlan, results: Results, scratch: Path, names: Mapping[str, int]
) -> dict[str, str]:
    """The environment variables of ranks that are launched now and write into `scratch`.

    They contain OMP_NUM_THREADS, so that the number of threads of a rank does not depend on the
    number of ranks: torch's launcher sets this variable only if there are several ranks.
    """
    script, measure = plan.spec.script, plan.spec.measure
    assert script is not None
    settings: dict[str, Any] = {
        "folder": str(scratch),
        "check": script.check,
        "power": measure.power == "auto",
        "launched": time.perf_counter(),
        "profile": None,
    }
    if measure.profile == "torch":
        settings["profile"] = {
            "first": measure.warmup_steps + 1,
            "steps": measure.profile_steps,
            "trace": str((results.journal_file(plan.run_id).parent / _TRACE).absolute()),
        }
    own = {SETTINGS: json.dumps(settings), "PYTHONUNBUFFERED": "1"}
    threads = {"OMP_NUM_THREADS": str(plan.spec.resources.cpus_per_worker)}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if plan.device == "cpu" else {}
    return {**threads, **os.environ, **hidden, **own, **script.variables(names)}


def _wait(
    process: subprocess.Popen[bytes], folder: Path, plan: RunPlan, ending: Callable[[], bool]
) -> bool:
    """Wait for the launcher; return whether it must be ended because no rank takes a step."""
    script = plan.spec.script
    assert script is not None
    files = [rank_file(folder, rank) for rank in range(plan.workers)]
    stall = Stall(script.stall_s)
    while process.poll() is None and not ending():
        time.sleep(_POLL_S)
        if stall.seen(sum(file.stat().st_size for file in files if file.exists())):
            return True
    return False


class Stall:
    """Detects that the ranks of a run take no more steps: a number that should grow at each step,
    such as the size of their files, no longer grows."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._size, self._moved = -1, time.monotonic()

    def seen(self, size: int) -> bool:
        """Record `size`; return whether it has been unchanged for longer than the limit."""
        if size != self._size:
            self._size, self._moved = size, time.monotonic()
        return time.monotonic() - self._moved > self._most_s


def _failure(ended: Ended) -> tuple[int, str]:
    """The rank that failed first, and its error (empty if no rank failed). A rank that failed
    because it lost another rank is ignored, unless all failed ranks lost another rank."""
    if ended.code == 0:
        return 0, ""
    logs, hosts = ended.logs, {log.begin.get("host") for log in ended.logs}
    errors = {rank: str(log.end["error"]) for rank, log in enumerate(logs) if log.end.get("error")}
    moments = {rank: logs[rank].marks.get("ended", math.inf) for rank in errors}
    moments |= {rank: at for rank, (_, at) in ended.died.items() if rank not in errors}
    if not moments:
        return len(logs), f"torch's launcher ended with {_exit(ended.code)}"
    own = [each for each in moments if not logs[each].end.get("peer_lost")] or list(moments)
    rank = min(own, key=lambda each: moments[each])
    where = f" on {logs[rank].begin.get('host', 'a lost node')}" if len(hosts) > 1 else ""
    if rank in errors:
        said = _last_line(ended.outputs[rank]) if errors[rank].startswith("SystemExit") else ""
        more = f"; its last output: {said}" if said and said not in errors[rank] else ""
        return rank, f"rank {rank}{where}: {errors[rank]}{more}"
    return rank, f"rank {rank}{where} ended with {_exit(ended.died[rank][0])}"


def _last_line(output: bytes | bytearray) -> str:
    """The last line that is not empty, or ""."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _exit(code: int) -> str:
    """An exit code as text, with the signal's name if a signal ended the process."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"{signal.Signals(-code).name} ({code})"
    return f"exit code {code}"


@contextmanager
def kept_outputs(pipes: Sequence[Path]) -> Iterator[tuple[dict[int, bytearray], int]]:
    """Create the named pipes and one additional pipe, and keep the tail of the output written to
    each.

    Yields (contents, descriptor). `contents` maps a descriptor of each pipe to the kept output, in
    the order of `pipes`, with the additional pipe last; `descriptor` is for writing to the
    additional pipe. Large output neither fills a disk nor blocks a writer.
    """
    kept: dict[int, bytearray] = {}
    closed = threading.Event()
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for pipe in pipes:
            os.mkfifo(pipe, 0o600)
            # opened for writing too, so that the pipe does not end when ranks close it
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
