"""Verdicts of launches that crash, hang or report an error: real processes write them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = [
        {"number": 0, "verdict": PASSED.model_dump_json()},
        {"begin": 1},
        {"number": 1, "error": "rank 1: ValueError: no"},
    ]
    lines = "\n".join(map(json.dumps, written))
    scripts = {
        0: f"cat >$0 <<'END'\n{lines}\nEND\nsleep 60",
        2: "echo chatter; echo KeyError: gone; echo report",
        3: "sleep 60",
    }

    def command(_: Request, pending: Sequence[int], file: Path, port: int) -> list[str]:
        return ["sh", "-c", scripts[pending[0]], str(file)]

    monkeypatch.setattr(torchrun, "_command", command)
    monkeypatch.setattr(torchrun, "_POLL_SECONDS", 0.01)
    strategies = [HorovodOptions(), *[DdpOptions()] * 3]
    found = dict(verify(Request(strategies, workers=3, settings={}, timeout_s=1.0)))
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
        3: "no result within 1 s: a rank hangs, or waits for one that died",
    }.items():
        wanted = PASSED.model_copy(update={**failure, "message": message})
        assert found[number] == wanted.model_copy(update={"time": found[number].time})
