"""What a script's ranks are given, and the Records of its run that is over."""

from __future__ import annotations

import json
import os
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.orchestrate import budget, script_launch
from raysuite.orchestrate.script_launch import (
    Ended,
    ScriptRuns,
    Stall,
    kept_outputs,
    variables,
    write_end,
)
from raysuite.orchestrate.stopping import request_stop
from raysuite.plan import RunPlan, make_plans
from raysuite.records import (
    EpochFinished,
    GateVerdict,
    Journal,
    Results,
    RunFailed,
    RunStarted,
    ScriptMeasured,
)
from raysuite.records.script_records import RankLog
from raysuite.spec.document import Document
from raysuite.train.script import SETTINGS
from raysuite.train.stop_together import Stop


def plan_of(
    folder: Path, workers: int, script: dict[str, object] | None = None, **more: object
) -> RunPlan:
    (file := folder / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(file)], **(script or {})},
        "resources": {"workers": workers, "device": "cpu"},
        **more,
    }
    return make_plans(Document(data, "test"), gpus=0)[0]


def plans_of(folder: Path, repeats: int) -> tuple[list[RunPlan], Results]:
    """Repeats of a script's run, in results."""
    plan, results = plan_of(folder, 1), Results(folder)
    plans = [
        plan.model_copy(update={"run_id": f"{number}", "index": number, "repeat": number})
        for number in range(repeats)
    ]
    results.write_plans([each.model_dump(mode="json") for each in plans])
    request_stop(folder, None)
    return plans, results


@pytest.mark.parametrize(("profile", "counted"), [("torch", [0.5] * 4), ("off", None)])
def test_no_step_counts_until_the_one_after_a_profile_has_ended(
    profile: str, counted: list[float] | None, tmp_path: Path
) -> None:
    """Two steps of warm-up, the first one apart, two for the profiler to settle, three that it
    sees, and one that waits for its end."""
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)], "check": 3},
        "resources": {"workers": 1, "device": "cpu"},
        "measure": {"warmup_steps": 2, "profile": profile, "profile_steps": 3},
    }
    [plan] = make_plans(Document(data, "test"), gpus=0)
    results = Results.create(tmp_path / "results")
    results.write_plans([plan.model_dump(mode="json")])
    started = RunStarted(run_id=plan.run_id, plan={}, environment={})
    Journal(results.journal_file(plan.run_id)).write(started)
    seconds = [1.0] * 5 + [4.0] * 3 + [9.0] + [0.5] * 4
    log = RankLog(begin={"host": "a", "memory": 1}, model={"parameters": 1, "optimizer": "SGD"})
    log.rows = [[end, None, 0.0, 8, None, False, 0.0] for end in accumulate(seconds, initial=0.0)]
    del log.rows[0]
    marks = {"launcher": 0.0, "process": 0.1, "first_batch": 0.2, "first_step": 1.0}
    log.end = {"marks": marks, "memory": 5}
    write_end(plan, results, Ended([log], [b""]))
    records = results.records(plan.run_id)
    [epoch] = [each for each in records if isinstance(each, EpochFinished)]
    assert epoch.step_seconds == pytest.approx(counted or seconds[2:])
    [measured] = [each for each in records if isinstance(each, ScriptMeasured)]
    assert not any("losses" in note for note in measured.notes), "of one worker"
    assert epoch.steady_seconds == pytest.approx(sum(epoch.step_seconds))


@pytest.mark.parametrize(
    ("device", "spec", "expected"),
    [
        ("cpu", {}, {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "7", "OTHER": "shell"}),
        ("gpu", {}, {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "7", "OTHER": "shell"}),
        ("cpu", {"OMP_NUM_THREADS": 5, "OTHER": "spec"}, {"OMP_NUM_THREADS": "5", "OTHER": "spec"}),
    ],
)
def test_a_run_on_the_cpu_sees_no_gpu_of_the_shell_and_the_spec_wins_over_the_shell(
    device: str,
    spec: dict[str, object],
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "7", "OTHER": "shell"}
    for key, value in {**shell, "PYTHONUNBUFFERED": ""}.items():
        monkeypatch.setenv(key, value)
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)], "environment": spec},
        "resources": {"workers": 1, "device": device},
    }
    [plan] = make_plans(Document(data, "test"), gpus=1)
    found = variables(plan, Results(tmp_path), tmp_path, {})
    assert {key: found[key] for key in expected} == expected
    assert found["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize(
    ("measure", "check", "expected"),
    [
        ({"power": False}, 0, {"check": 0, "power": False, "profile": None}),
        (
            {"warmup_steps": 4, "profile": "torch", "profile_steps": 3},
            2,
            {"check": 2, "power": True, "profile": {"first": 5, "steps": 3}},
        ),
    ],
)
def test_a_rank_is_told_what_to_measure_and_where(
    measure: dict[str, object], check: int, expected: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, 1, {"check": check}, measure=measure)
    found = json.loads(variables(plan, Results(tmp_path), tmp_path / "x", {})[SETTINGS])
    if expected["profile"]:
        trace = tmp_path / "runs" / plan.run_id / "trace.json.gz"
        expected["profile"]["trace"] = str(trace)
    del found["launched"]
    assert found == {"folder": str(tmp_path / "x"), **expected}


def test_a_rank_has_as_many_threads_as_cores_unless_the_shell_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)]},
        "resources": {"workers": 1, "device": "cpu", "cpus_per_worker": 3},
    }
    [plan] = make_plans(Document(data, "test"), gpus=0)
    assert variables(plan, Results(tmp_path), tmp_path, {})["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("error", "output", "message"),
    [
        (
            "SystemExit: 2",
            b"usage: x\nx: error: no --lr\n\n",
            "; its last output: x: error: no --lr",
        ),
        ("SystemExit: 2", b"", ""),
        ("SystemExit: no data", b"no data\n", ""),
        ("ValueError: a", b"b\n", ""),
    ],
)
def test_a_script_that_exits_fails_with_its_last_line(
    error: str, output: bytes, message: str, tmp_path: Path
) -> None:
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)]},
        "resources": {"workers": 1, "device": "cpu"},
    }
    [plan] = make_plans(Document(data, "test"), gpus=0)
    results = Results.create(tmp_path / "results")
    write_end(plan, results, Ended([RankLog(end={"error": error})], [output, b""], code=1))
    [failed] = results.records(plan.run_id)
    assert isinstance(failed, RunFailed)
    assert failed.message == f"rank 0: {error}{message}"


def failed(error: str, ended: float, host: str = "a", **more: object) -> RankLog:
    return RankLog(begin={"host": host}, end={"error": error, "marks": {"ended": ended}, **more})


LIVES = RankLog(begin={"host": "a"})
LOST = {"peer_lost": True}
KILL = "SIGKILL (-9)"


@pytest.mark.parametrize(
    ("logs", "died", "expected"),
    [
        ([failed("E: x", 9.0), failed("E: y", 8.0)], {}, (1, "rank 1: E: y")),
        ([failed("E: x", 9.0), failed("E: y", 8.0, **LOST)], {}, (0, "rank 0: E: x")),
        ([failed("E: x", 9.0, **LOST), failed("E: y", 8.0, **LOST)], {}, (1, "rank 1: E: y")),
        ([LIVES, LIVES], {0: (-15, 5.0), 1: (-9, 4.0)}, (1, f"rank 1 ended with {KILL}")),
        ([LIVES, LIVES], {0: (3, 4.0), 1: (-15, 5.0)}, (0, "rank 0 ended with exit code 3")),
        ([failed("E: x", 9.0, **LOST), LIVES], {1: (-9, 9.5)}, (1, f"rank 1 ended with {KILL}")),
        ([failed("E", 9.0), LIVES], {0: (1, 3.0), 1: (-9, 5.0)}, (1, f"rank 1 ended with {KILL}")),
        ([LIVES, LIVES], {}, (2, "torch's launcher ended with exit code 7")),
        ([LIVES, failed("E: y", 8.0, "b")], {}, (1, "rank 1 on b: E: y")),
        ([LIVES, RankLog()], {1: (-9, 1.0)}, (1, f"rank 1 on a lost node ended with {KILL}")),
        ([LIVES, LIVES], {1: (-99, 1.0)}, (1, "rank 1 ended with exit code -99")),
        (
            [LIVES, failed("SystemExit: 2", 1.0)],
            {},
            (1, "rank 1: SystemExit: 2; its last output: of 1"),
        ),
    ],
)  # fmt: skip
def test_the_failure_is_of_the_rank_that_failed_first_by_itself(
    logs: list[RankLog], died: dict[int, tuple[int, float]], expected: tuple[int, str]
) -> None:
    ended = Ended(logs, [b"of 0\n", b"of 1\n", b"of the launcher\n"], 7, died)
    assert script_launch._failure(ended) == expected
    assert script_launch._failure(Ended(logs, ended.outputs, 0, died)) == (0, "")


def test_a_failed_run_keeps_the_end_of_the_output_of_the_rank_that_failed(tmp_path: Path) -> None:
    plan, results = plan_of(tmp_path, 2), Results(tmp_path)
    outputs = [b"of 0\n", "".join(f"line {n}\n" for n in range(30)).encode(), b"launcher\n"]
    logs = [LIVES, failed("E: y", 8.0)]
    write_end(plan, results, Ended(logs, outputs, 1))
    [record] = results.records(plan.run_id)
    assert isinstance(record, RunFailed)
    lines = [f"line {n}" for n in range(10, 30)]
    assert record.detail.splitlines() == ["end of the output of rank 1:", *lines]
    folder = results.journal_file(plan.run_id).parent
    names = ("rank-0.log", "rank-1.log", "launcher.log")
    assert [(folder / name).read_bytes() for name in names] == outputs


@pytest.mark.parametrize(
    ("stalled", "detail"),
    [
        (False, ["end of the output of torch's launcher:", "no free port"]),
        (True, ["end of the output of rank 1:", "of 1"]),
    ],
)
def test_a_launcher_that_failed_alone_is_explained_by_its_own_output(
    stalled: bool, detail: list[str], tmp_path: Path
) -> None:
    plan, results = plan_of(tmp_path, 2), Results(tmp_path)
    outputs = [b"of 0\n", b"of 1\n", b"no free port\n"]
    write_end(plan, results, Ended([LIVES, LIVES], outputs, 1, stalled=stalled))
    [record] = results.records(plan.run_id)
    assert isinstance(record, RunFailed)
    assert record.detail.splitlines() == detail


def test_a_run_that_stalls_fails_with_the_steps_of_each_rank(tmp_path: Path) -> None:
    plan, results = plan_of(tmp_path, 2, {"stall_s": 30}), Results(tmp_path)
    row = [1.0, None, 0.0, 8, None, False, 0.0]
    logs = [RankLog(rows=[row] * steps) for steps in (3, 2)]
    write_end(plan, results, Ended(logs, [b"", b""], 1, stalled=True))
    [record] = results.records(plan.run_id)
    assert isinstance(record, RunFailed)
    assert record.message.startswith("no rank took a step for 30 s (steps so far: rank 0: 3, rank")


def test_runs_of_a_script_begin_in_order_until_a_stop_and_only_those_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has ended, and a budget leaves out the third."""
    plans, results = plans_of(tmp_path, 6)
    begun: list[int] = []

    def run_script(plan: RunPlan, _: Results, ending: Any) -> None:
        assert not ending()
        begun.append(plan.index)
        if plan.index == 3:
            request_stop(tmp_path, Stop("preempted"))
            assert ending()

    monkeypatch.setattr(script_launch, "run_script", run_script)
    monkeypatch.setattr(budget, "allows", lambda _, plan: plan.index != 2)
    end = RunFailed(run_id="0", reason="error", message="boom")
    Journal(results.journal_file("0")).write(end)
    ScriptRuns(plans, results).fit()
    assert begun == [1, 3]
    request_stop(tmp_path, None)
    halted = ScriptRuns(plans, results)
    halted._halted.set()
    halted.fit()
    assert halted._over.is_set(), "`halt` returns at once"
    assert begun == [1, 3]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_script_that_was_asked_to_stop_has_no_end(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [plan], results = plans_of(tmp_path, 1)
    monkeypatch.setattr(script_launch, "_launch", lambda *_: Ended([LIVES], [b"", b""], 1))
    script_launch.run_script(plan, results, lambda: stopped)
    kinds = [type(record) for record in results.records(plan.run_id)]
    assert kinds == [RunStarted, RunFailed][: 1 if stopped else 2]


def test_a_stall_is_counted_from_the_last_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(script_launch, "time", SimpleNamespace(monotonic=lambda: now))
    stall, found = Stall(10.0), []
    for at, size in [(109, 0), (119, 0), (120, 0), (121, 5), (131, 5), (132, 4), (143, 4)]:
        now = at
        found.append(stall.seen(size))
    assert found == [False, False, True, False, False, False, True]


def test_the_ends_of_outputs_are_kept_in_the_order_of_the_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_launch, "_KEPT_BYTES", 4)
    monkeypatch.setattr(script_launch, "_POLL_S", 0.01)
    pipes = [tmp_path / "0", tmp_path / "1"]
    with kept_outputs(pipes) as (kept, descriptor):
        os.write(descriptor, b"launcher")
        for pipe, text in zip(pipes, (b"abcdef", b"gh"), strict=True):
            with pipe.open("wb") as stream:
                stream.write(text)
    assert [bytes(each) for each in kept.values()] == [b"cdef", b"gh", b"cher"]


def test_losses_are_compared_with_those_of_one_worker_of_the_same_script(tmp_path: Path) -> None:
    results = Results(tmp_path)
    plans = [
        plan_of(tmp_path, 2),
        plan_of(tmp_path, 1),
        plan_of(tmp_path, 1, {"environment": {"OTHER": 1}}),
        plan_of(tmp_path, 4),
    ]
    plans = [
        each.model_copy(update={"run_id": f"{number}", "index": number})
        for number, each in enumerate(plans)
    ]
    results.write_plans([each.model_dump(mode="json") for each in plans])
    for plan in plans:
        measured = ScriptMeasured(
            run_id=plan.run_id,
            steps=1,
            left_out=0,
            samples_per_step=None,
            steps_per_second=1.0,
            parameters=None,
            hosts=[],
            start_seconds={},
        )
        Journal(results.journal_file(plan.run_id)).write(measured)
    assert [each.run_id for each in script_launch._alone(plans[0], results)] == ["1"]


@pytest.mark.parametrize(
    ("workers", "check", "passed", "kinds"),
    [
        (2, 3, True, ["gate_verdict", "epoch_finished"]),
        (2, 3, False, ["gate_verdict", "run_failed"]),
        (2, 0, False, ["epoch_finished"]),
        (1, 3, False, ["epoch_finished"]),
    ],
)
def test_a_script_is_checked_on_several_workers_if_it_is_asked_for(
    workers: int,
    check: int,
    passed: bool,
    kinds: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script: dict[str, object] = {"check": check, "samples_per_step": "8 * workers * nodes"}
    plan, results = plan_of(tmp_path, workers, script), Results(tmp_path)
    found = GateVerdict(
        run_id=plan.run_id,
        strategy="script",
        workers=workers,
        passed=passed,
        ranks_equal=passed,
        error=0.0,
        error_batchnorm=0.0,
        tolerance=0.1,
        rule="",
        steps=3,
        message="losses differ",
    )
    monkeypatch.setattr(script_launch, "verdict", lambda *_: (found, ["a note"]))
    monkeypatch.setattr(script_launch, "_alone", lambda *_: [])
    seen: list[object] = []

    def records(run_id: str, logs: object, steps: object, samples: int, notes: object) -> Any:
        seen.extend([samples, notes])
        return [epoch]

    epoch = SimpleNamespace(kind="epoch_finished")
    monkeypatch.setattr(script_launch, "script_records", records)
    monkeypatch.setattr(script_launch, "too_few", lambda *_: "")
    made: Any = script_launch._records(
        plan, results, Ended([LIVES] * workers, [b""] * workers, nodes=3)
    )
    assert [record.kind for record in made] == kinds
    if passed or kinds[0] != "gate_verdict":
        assert seen == [24 * workers, ["a note"] if passed else []]
    else:
        assert (made[1].reason, made[1].message) == ("gate", "losses differ")
