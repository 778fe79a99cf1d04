"""Verdicts of launches that crash, hang or report an error: real processes write them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from raysuite.orchestrate import torchrun
from raysuite.orchestrate.torchrun import Request, verify
from raysuite.records import GateVerdict
from raysuite.spec.strategies import DdpOptions, HorovodOptions

PASSED = GateVerdict(
    run_id="",
    strategy="horovod",
    workers=3,
    passed=True,
    ranks_equal=True,
    error=0.0,
    error_batchnorm=0.0,
    tolerance=1e-5,
    rule="equal",
    steps=2,
)


def test_a_launch_that_ends_early_fails_one_strategy_and_the_next_launch_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [
        {"number": 0, "verdict": PASSED.model_dump_json()},
        {"begin": 1},
        {"number": 1, "error": "rank 1: ValueError: no"},
    ]
    scripts = {
        0: "".join(f"sleep 0.05; printf '%s\\n' '{json.dumps(line)}' >>$0; " for line in written)
        + "sleep 60",
        2: "echo chatter; echo KeyError: gone; echo report",
        3: f"touch {tmp_path}/hangs; sleep 60",
    }
    leaps = count()

    def monotonic() -> float:
        """Leaps at each query once the last launch hangs."""
        return time.monotonic() + (1000 * next(leaps) if (tmp_path / "hangs").exists() else 0)

    def command(_: Request, pending: Sequence[int], file: Path, port: int) -> list[str]:
        return ["sh", "-c", f"echo $$ >>{tmp_path}/pids; {scripts[pending[0]]}", str(file)]

    monkeypatch.setattr(torchrun, "_command", command)
    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr(torchrun, "time", clock)
    monkeypatch.setattr(torchrun, "_POLL_SECONDS", 0.01)
    strategies = [HorovodOptions(), *[DdpOptions()] * 3]
    found = dict(verify(Request(strategies, workers=3, settings={}, timeout_s=500.0)))
    assert found[0] == PASSED
    failure = {
        "strategy": "ddp",
        "passed": False,
        "ranks_equal": False,
        "error": math.inf,
        "error_batchnorm": math.inf,
        "tolerance": None,
        "rule": "the strategy comes to an end",
        "steps": 0,
    }
    for number, message in {
        1: "rank 1: ValueError: no",
        2: "its processes ended without a result: KeyError: gone",
        3: "no result within 500 s: a rank hangs, or waits for one that died",
    }.items():
        wanted = PASSED.model_copy(update={**failure, "message": message})
        assert found[number] == wanted.model_copy(update={"time": found[number].time})
    pids = (tmp_path / "pids").read_text().split()
    assert (len(pids), [pid for pid in pids if psutil.pid_exists(int(pid))]) == (3, [])
