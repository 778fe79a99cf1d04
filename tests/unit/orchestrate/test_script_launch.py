"""What a script's ranks are given, and the Records of its run that is over."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from raysuite.orchestrate.script_launch import Ended, variables, write_end
from raysuite.plan import make_plans
from raysuite.records import EpochFinished, Journal, Results, RunFailed, RunStarted, ScriptMeasured
from raysuite.records.script_records import RankLog
from raysuite.spec.document import Document


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
