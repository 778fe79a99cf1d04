"""Ranks of a training script on workers that share a store: real processes, here one thread each
in place of Ray's workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    TCPStore,
)

from raysuite.cluster.guard import FOLDER
from raysuite.orchestrate import script_ranks
from raysuite.orchestrate.script_ranks import _ended, _Watch, run_rank
from raysuite.orchestrate.stopping import request_stop
from raysuite.plan import make_plans
from raysuite.records import (
    EpochFinished,
    Results,
    RunFailed,
    RunFinished,
    RunStarted,
    ScriptMeasured,
)
from raysuite.spec.document import Document
from raysuite.train.stop_together import Stop
from tests.stepping import STEPS

pytestmark = [pytest.mark.integration]


@pytest.fixture(autouse=True)
def _several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank sends is cut, as that of many steps is."""
    monkeypatch.setattr("raysuite.orchestrate.script_ranks._CHUNK", 100)


TRAIN = f"""
import os, sys, time, torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
assert os.environ["LOCAL_RANK"] == "0" and os.environ["GROUP_RANK"] == str(rank)
assert sys.argv[1:] == ["--nodes", "2"]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
{STEPS}
steps(20)
"""


def ran(
    folder: Path,
    body: str = "",
    stop: Callable[[Results], None] = lambda results: None,
    **keys: Any,
) -> tuple[Results, dict[type, Any]]:
    """Results and Records, by their kind, of a script with two ranks on two nodes."""
    script = folder / "train.py"
    script.write_text(f"{TRAIN}\n{body}\n")
    data = {
        "name": "own",
        "script": {"command": [str(script), "--nodes", "{nodes}"], **keys},
        "resources": {"workers": 2, "device": "cpu"},
        "measure": {"warmup_steps": 2},
    }
    (plan,) = make_plans(Document(data, "spec.yaml"), 0)
    results = Results(folder / "results")
    results.folder.mkdir()
    request_stop(results.folder, None)
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def work(rank: int) -> None:
        store = PrefixStore("run", TCPStore("127.0.0.1", served.port))
        place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        words = {key: str(value) for key, value in (place | {"GROUP_RANK": rank}).items()}
        run_rank(plan, words, f"node{rank}", results, store)

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for worker in workers:
        worker.start()
    stop(results)
    for worker in workers:
        worker.join()
    assert not left(str(script))
    return results, {type(record): record for record in results.records(plan.run_id)}


def left(word: str) -> list[int]:
    """Processes with a word on their command line."""
    import psutil

    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if word in (each.info["cmdline"] or [])]


def test_ranks_on_two_nodes_are_measured_as_one_run(tmp_path: Path) -> None:
    assert FOLDER not in os.environ
    results, found = ran(tmp_path, "dist.destroy_process_group()")
    assert RunFailed not in found, found[RunFailed]
    measured = found[ScriptMeasured]
    assert (measured.steps, measured.samples_per_step) == (20, 8)
    assert len(measured.hosts) == 2
    starts = measured.start_seconds
    assert all(len(each) == 2 and min(each) >= 0 for each in starts.values())
    assert min(starts["imports"]) > 0
    slowest = max(sum(each) for each in zip(*starts.values(), strict=True))
    assert slowest == pytest.approx(found[RunFinished].first_step_seconds)
    assert found[EpochFinished].elapsed_seconds < found[RunFinished].seconds
    folder = results.journal_file(measured.run_id).parent
    assert {file.name for file in folder.glob("*.log")} == {"rank-0.log", "rank-1.log"}


PROBLEMS = {
    "raises": (
        "if rank: raise RuntimeError('no such\\nthing')\ndist.barrier()",
        "rank 1: RuntimeError: no such",
    ),
    "killed": ("if rank: os.kill(os.getpid(), 9)\ndist.barrier()", "rank 1 ended with SIGKILL"),
    "exits": ("if not rank: sys.exit(7)\ntime.sleep(600)", "rank 0: SystemExit: 7"),
    "hangs": (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "time.sleep(600 if rank else 0)",
        "no rank took a step for 20 s",
    ),
}


def test_the_code_of_a_script_is_of_the_rank_that_failed_first() -> None:
    """Others fail because of it."""
    at = {0: (0, 9.0), 1: (-15, 5.5), 2: (3, 5.0), 3: (1, 6.0)}
    parts = [[code, when, "", f"of {rank}", {"host": "a"}] for rank, (code, when) in at.items()]
    ended = _ended(parts, stalled=False, nodes=2)
    assert (ended.code, ended.nodes, ended.stalled) == (3, 2, False)
    assert ended.died == {rank: each for rank, each in at.items() if each[0]}
    assert ended.outputs == [f"of {rank}".encode() for rank in at]
    assert [log.begin["host"] for log in ended.logs] == ["a"] * 4
    known = '{"kind": "begin", "host": "b", "launched": 1.0}\n'
    [log] = _ended([[0, 9.0, known, "", {"host": "a"}]], stalled=False, nodes=1).logs
    assert log.begin == {"host": "b", "launched": 1.0}
    assert _ended(parts[:1], stalled=True, nodes=1).code == 0


def test_a_rank_has_torchruns_variables_and_the_address_of_its_runs_store(tmp_path: Path) -> None:
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)]},
        "resources": {"workers": 3, "device": "cpu"},
    }
    [plan] = make_plans(Document(data, "spec.yaml"), 0)
    place = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "GROUP_RANK": "1"}
    meeting = {"address": ["10.0.0.1", 29_000], "nodes": 2}
    assert script_ranks._torchrun(plan, place, meeting) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29000",
        "ROLE_NAME": "default",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "3",
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


@pytest.mark.thorough
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_rank_that_goes_wrong_ends_all_clearly(problem: str, tmp_path: Path) -> None:
    body, words = PROBLEMS[problem]
    began = time.monotonic()
    _, found = ran(tmp_path, body, stall_s=20 if problem == "hangs" else 600)
    assert words in found[RunFailed].message
    assert time.monotonic() - began < 120


@pytest.mark.thorough
def test_a_run_that_is_stopped_has_no_end_and_no_orphan(tmp_path: Path) -> None:
    def stop(results: Results) -> None:
        time.sleep(8)
        request_stop(results.folder, Stop("interrupted"))

    _, found = ran(tmp_path, "time.sleep(600)", stop)
    assert set(found) == {RunStarted}


def test_steps_are_reported_while_the_file_of_a_rank_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six looks: before there is a file, then at 0, 1, 1, 2 and 2 bytes."""
    monkeypatch.setattr(script_ranks, "_LOOK_S", 0.0)
    monkeypatch.setattr(script_ranks, "_POLL_S", 0.0)
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)]},
        "resources": {"workers": 2, "device": "cpu"},
    }
    [plan] = make_plans(Document(data, "spec.yaml"), 0)
    request_stop(tmp_path, None)
    store, file, sizes = HashStore(), tmp_path / "rank", iter([None, 0, 1, 1, 2, 2])
    watch, grown = _Watch(plan, Results(tmp_path), store, 0), []

    def poll() -> int | None:
        grown.append(store.add("grown", 0))
        if (size := next(sizes, -1)) is not None and size >= 0:
            file.write_bytes(bytes(size))
        return 0 if size == -1 else None

    process: Any = SimpleNamespace(poll=poll)
    assert watch.until_ended(process, file)
    assert grown == [0, 1, 1, 2, 2, 3, 3]
    watch.end("failed")
    watch.end("later")
    assert watch.why() == "failed"


@pytest.mark.parametrize(
    ("grown", "stop", "why"),
    [
        ((False, False), False, "stalled"),
        ((False, True), False, ""),
        ((True, False), False, ""),
        ((False, True), True, "stopped"),
    ],
)
def test_rank_0_ends_all_ranks_at_a_stop_or_when_no_rank_takes_steps(
    grown: tuple[bool, bool], stop: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 20 s, of which 10 may be without a step; and no rank ends by itself before."""
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)], "stall_s": 10},
        "resources": {"workers": 2, "device": "cpu"},
    }
    [plan] = make_plans(Document(data, "spec.yaml"), 0)
    now, store = 100.0, HashStore()
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(script_ranks, "time", clock)
    monkeypatch.setattr("raysuite.orchestrate.script_launch.time", clock)
    request_stop(tmp_path, None)
    watches = [_Watch(plan, Results(tmp_path), store, rank) for rank in range(2)]
    for at in range(102, 120, 2):
        now = at
        for rank in (1, 0):
            watches[rank]._is_over(at if grown[rank] else 7)
    if stop:
        request_stop(tmp_path, Stop("interrupted"))
        now = 122
        assert not watches[1]._is_over(8)
        watches[0]._is_over(7)
    assert watches[1].why() == why
    now = 124
    assert watches[1]._is_over(9) == bool(why)
