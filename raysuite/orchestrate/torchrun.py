"""Check strategies with the gate under torchrun, on one machine and without Ray.

One launch of torchrun checks several strategies, one after the other. A strategy that crashes or
hangs has failed; another launch then continues with the next strategy.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysuite.cluster.ports import held_port
from raysuite.ending import end_group
from raysuite.plan import RunPlan
from raysuite.records import GateVerdict
from raysuite.spec.strategies import StrategyOptions

_PATIENCE_S = 10.0
"""Maximum seconds to wait for the ranks to end after SIGTERM."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Request:
    """The strategies to check, and the settings of the check."""

    strategies: Sequence[StrategyOptions]
    workers: int
    settings: dict[str, Any]
    """Arguments of `StepSettings`, except the micro-batch."""
    device: str = "cpu"
    timeout_s: float = 180.0
    """Time limit in seconds for one strategy, including the start of its processes."""
    plans: Sequence[RunPlan] = ()
    """One plan per strategy; the gate then also checks the plan's network. Empty: check only the
    gate's own small network."""


def verify(request: Request) -> Iterator[tuple[int, GateVerdict]]:
    """Yield each strategy's (index in the request, verdict), in order, once it is checked."""
    pending = list(range(len(request.strategies)))
    while pending:
        for number, verdict in _launch(request, _together(request, pending)):
            yield number, verdict
            pending.remove(number)


def _together(request: Request, pending: Sequence[int]) -> list[int]:
    """The first strategies in `pending` that one launch can check together. Some frameworks read
    their options only once per process, so a launch checks at most one strategy with such
    options."""
    settled = [n for n in pending if request.strategies[n].process_settings is not None]
    return list(pending[: pending.index(settled[1])] if len(settled) > 1 else pending)


def _launch(request: Request, pending: Sequence[int]) -> Iterator[tuple[int, GateVerdict]]:
    """Yield the verdicts of one launch; after a crash or hang, the last verdict is a failure."""
    with tempfile.TemporaryDirectory(prefix="raysuite-verify-") as folder, held_port() as port:
        file, log = Path(folder) / "verdicts.jsonl", Path(folder) / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                _command(request, pending, file, port),
                env={"OMP_NUM_THREADS": "1", **os.environ},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that all of its processes can be ended together
            )
        left, read = list(pending), 0
        deadline = time.monotonic() + request.timeout_s
        try:
            while left:
                # check this before reading the file: nothing is written after the end
                ended = process.poll() is not None
                lines = _lines(file)
                for line in lines[read:]:
                    if "begin" in line and line["begin"] != pending[0]:
                        deadline = time.monotonic() + request.timeout_s
                    if "error" in line:
                        yield line["number"], _failure(request, line["number"], line["error"])
                        return
                    if "verdict" in line:
                        left.remove(line["number"])
                        yield line["number"], GateVerdict.model_validate_json(line["verdict"])
                read = len(lines)
                if left and (ended or time.monotonic() > deadline):
                    why = (
                        f"its processes ended without a result: {_last_line(log)}"
                        if ended
                        else f"no result within {request.timeout_s:g} s: a rank hangs, or waits "
                        "for one that died"
                    )
                    yield left[0], _failure(request, left[0], why)
                    return
                time.sleep(_POLL_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):  # all verdicts are already known
                process.wait(request.timeout_s)
        finally:
            end_group(process, _PATIENCE_S)


def _command(request: Request, pending: Sequence[int], file: Path, port: int) -> list[str]:
    content = {
        "strategies": [[n, request.strategies[n].model_dump(mode="json")] for n in pending],
        "settings": request.settings,
        "device": request.device,
        "plans": [[n, request.plans[n].model_dump(mode="json")] for n in pending if request.plans],
    }
    return [
        *launcher(request.workers, port, file.parent),
        *("-m", "raysuite.gate", str(file), json.dumps(content)),
    ]


def launcher(workers: int, port: int, folder: Path) -> list[str]:
    """The command line of torchrun on this host, without the program that it starts. torchrun
    writes its own files into `folder`; by default it would leave a new folder in /tmp."""
    words = [sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"]
    words += ["--log-dir", str(folder / "torchrun")]
    return [*words, "--nproc-per-node", str(workers), "--master-port", str(port)]


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    whole = file.read_text("utf-8").split("\n")[:-1]  # the last line may be incomplete
    return [json.loads(line) for line in whole]


def _failure(request: Request, number: int, message: str) -> GateVerdict:
    return GateVerdict(
        run_id="",
        strategy=request.strategies[number].name,
        workers=request.workers,
        passed=False,
        ranks_equal=False,
        error=math.inf,
        error_batchnorm=math.inf,
        tolerance=None,
        rule="the strategy's check runs to completion",
        steps=0,
        message=message,
    )


def _last_line(log: Path) -> str:
    """The last line of the log that names an error or a signal, possibly in torchrun's report, or
    else the last line."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if "Error" in line or "Signal" in line]
    return (errors or lines or ["no output"])[-1][:300]
