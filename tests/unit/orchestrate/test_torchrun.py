"""Verdicts of launches that crash, hang or report an error: real processes write them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from raysuite.orchestrate import torchrun
from raysuite.orchestrate.torchrun import Request, verify
from raysuite.plan import make_plans
from raysuite.records import GateVerdict
from raysuite.spec import parse_document
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

    def lines(*records: dict[str, Any]) -> str:
        return "".join(f"sleep 0.05; printf '%s\\n' '{json.dumps(r)}' >>$0; " for r in records)

    scripts = {
        0: lines(*written) + "sleep 60",
        2: "echo chatter; echo KeyError: gone; echo report",
        3: lines({**written[0], "number": 3}) + f"touch {tmp_path}/hangs; sleep 60",
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
    strategies = [HorovodOptions(), *[DdpOptions()] * 4]
    found = dict(verify(Request(strategies, workers=3, settings={}, timeout_s=500.0)))
    assert found[0] == found[3] == PASSED
    failure = {
        "strategy": "ddp",
        "passed": False,
        "ranks_equal": False,
        "error": math.inf,
        "error_batchnorm": math.inf,
        "tolerance": None,
        "rule": "the strategy's check runs to completion",
        "steps": 0,
    }
    for number, message in {
        1: "rank 1: ValueError: no",
        2: "its processes ended without a result: KeyError: gone",
        4: "no result within 500 s: a rank hangs, or waits for one that died",
    }.items():
        wanted = PASSED.model_copy(update={**failure, "message": message})
        assert found[number] == wanted.model_copy(update={"time": found[number].time})
    pids = (tmp_path / "pids").read_text().split()
    assert (len(pids), [pid for pid in pids if psutil.pid_exists(int(pid))]) == (3, [])


def test_a_launch_checks_at_most_one_strategy_whose_options_are_read_once_per_process() -> None:
    request = Request([DdpOptions(), HorovodOptions()] * 3, workers=2, settings={})
    pending, launches = list(range(6)), []
    while pending:
        launches.append(torchrun._together(request, pending))
        pending = pending[len(launches[-1]) :]
    assert launches == [[0, 1, 2], [3, 4], [5]]


@pytest.mark.parametrize("own", [False, True])
def test_a_launch_gets_its_strategies_with_their_numbers_and_networks(
    own: bool, tmp_path: Path
) -> None:
    text = (
        "name: a\ndata: digits\nmodel: resnet20\ntraining: {epochs: 1, global_batch: 64}\n"
        "matrix: {seed: [0, 1, 2]}\n"
    )
    plans = make_plans(parse_document(text, "x.yaml"), gpus=0) if own else ()
    strategies = [DdpOptions(bucket_mb=size) for size in (1, 2, 3)]
    request = Request(strategies, 3, {"steps": 5}, "gpu", plans=plans)
    *words, content = torchrun._command(request, [0, 2], tmp_path / "verdicts.jsonl", 29_000)
    assert words[-3:] == ["-m", "raysuite.gate", str(tmp_path / "verdicts.jsonl")]
    pairs = dict(pairwise(words))
    assert pairs["--log-dir"] == str(tmp_path / "torchrun")
    assert (pairs["--nproc-per-node"], pairs["--master-port"]) == ("3", "29000")
    found = json.loads(content)
    assert [(n, each["bucket_mb"]) for n, each in found["strategies"]] == [(0, 1), (2, 3)]
    assert [(n, each["spec"]["seed"]) for n, each in found["plans"]] == [(0, 0), (2, 2)][: 2 * own]
    assert (found["settings"], found["device"]) == ({"steps": 5}, "gpu")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n  KeyError: x\nreport\n", "KeyError: x"),
        ("E Error\nSignal 9 (SIGKILL)\nb\n", "Signal 9 (SIGKILL)"),
        ("a\nb\n", "b"),
        ("", "no output"),
    ],
)
def test_the_last_line_of_a_launch_is_its_error_if_there_is_one(
    text: str, line: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(text)
    assert torchrun._last_line(tmp_path / "log") == line


def test_a_verdict_is_read_when_its_line_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "verdicts"
    assert torchrun._lines(file) == []
    file.write_text('{"begin": 0}\n{"number"')
    assert torchrun._lines(file) == [{"begin": 0}]
