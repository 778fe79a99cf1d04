"""`raysuite watch` over results folders whose journals were written by hand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cluster import suites
from raysuite.cluster.suites import LOCK, has_driver
from raysuite.records import Journal, Results, RunFailed, RunStopped
from raysuite.records.journal import DECIDED, Decided
from raysuite.records.live import LivePosition, live_file
from tests.fake_results import run_records, write_results
from tests.fake_sweeps import write_sweep

SPEC = """\
name: watched
model: resnet20
data: digits
training: {epochs: 3, global_batch: 64}
strategy: ddp
matrix: {loader: [native, dali]}
"""
FAILURE = {1: RunFailed(run_id="", reason="error", message="ValueError: no")}


@pytest.mark.parametrize(
    ("fails", "missing", "code"), [({}, (), 0), (FAILURE, (), 1), ({}, (1,), os.EX_TEMPFAIL)]
)
def test_without_a_driver_it_ends_with_what_became_of_the_runs(
    tmp_path: Path, fails: dict[int, RunFailed], missing: tuple[int, ...], code: int
) -> None:
    results = write_results(tmp_path / "watched" / "1", SPEC, fails=fails, missing=missing)
    seen = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert (seen.exit_code, seen.stderr) == (code, "")
    assert str(results.folder) in seen.stdout


@pytest.mark.parametrize("words", [[], ["--once"]])
def test_a_run_whose_driver_died_is_shown_as_stopped(words: list[str], tmp_path: Path) -> None:
    results = write_results(tmp_path / "1", SPEC, missing=(0, 1))
    run_id = results.plans()[0]["run_id"]
    _begin(results, run_id)
    for file in results.journal_file(run_id).parent.iterdir():
        os.utime(file, (time.time() - 600,) * 2)
    seen = CliRunner().invoke(app, ["watch", str(results.folder), *words])
    assert seen.exit_code == os.EX_TEMPFAIL, seen.output
    assert [line.strip() for line in seen.stdout.splitlines()[1:]] == ["1 stopped · 1 to go"]


def test_a_run_that_has_just_stopped_counts_as_stopped(tmp_path: Path) -> None:
    results = write_results(tmp_path / "1", SPEC, missing=(0, 1))
    run_id = results.plans()[0]["run_id"]
    _begin(results, run_id)
    stopped = RunStopped(run_id=run_id, reason="time_limit", epoch=0, step=5)
    Journal(results.journal_file(run_id)).write(stopped)
    seen = CliRunner().invoke(app, ["watch", str(results.folder), "--once"])
    assert seen.exit_code == os.EX_TEMPFAIL, seen.output
    assert "starting" not in seen.stdout


def test_once_prints_the_state_once_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    results = write_results(tmp_path / "1", SPEC)
    seen = CliRunner().invoke(app, ["watch", str(results.folder), "--once"])
    assert seen.stdout.count("finished") == 1


def test_once_shows_a_run_of_another_host(tmp_path: Path) -> None:
    results = write_results(tmp_path / "1", SPEC, missing=(0, 1))
    plan = results.plans()[0]
    (results.folder / LOCK).write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    _begin(results, plan["run_id"])
    seen = CliRunner().invoke(app, ["watch", str(results.folder), "--once"])
    assert seen.exit_code == 0, seen.output
    assert "step 5 of 23" in seen.stdout
    assert "1,234 images/s" in seen.stdout


def test_without_a_driver_it_waits_while_a_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_results(tmp_path / "1", SPEC, missing=(0, 1))
    run_id = results.plans()[0]["run_id"]
    _begin(results, run_id)
    # its last record is of the epoch before; the position in this one is from now
    os.utime(results.journal_file(run_id), (time.time() - 600,) * 2)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        for file in results.folder.glob("runs/*/*"):  # time passes
            os.utime(file, (file.stat().st_mtime - 12,) * 2)

    monkeypatch.setattr(time, "sleep", sleep)
    seen = CliRunner().invoke(app, ["watch", str(results.folder)])
    assert (seen.exit_code, len(slept)) == (os.EX_TEMPFAIL, 3)


def test_what_the_driver_writes_until_its_end_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends just before `watch` looks for it."""
    results = write_results(tmp_path / "1", SPEC)
    journal = results.journal_file(results.plans()[1]["run_id"])
    *before, end = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(before))

    def ends(folder: Path) -> bool:
        journal.write_text("".join([*before, end]))
        return has_driver(folder)

    monkeypatch.setattr(suites, "has_driver", ends)
    seen = CliRunner().invoke(app, ["watch", str(results.folder)])
    assert (seen.exit_code, seen.stdout.splitlines()[-1]) == (0, "2 finished")


def _begin(results: Results, run_id: str) -> None:
    from raysuite.plan import RunPlan

    plan = next(RunPlan.model_validate(each) for each in results.plans())
    journal = Journal(results.journal_file(run_id))
    for record in run_records(plan)[:2]:
        journal.write(record)
    position = LivePosition(
        time=0, epoch=0, step=5, steps=23, images=320, images_per_second=1234, loss=2.0
    )
    live_file(journal.file).write_text(position.model_dump_json())


def test_a_sweep(tmp_path: Path) -> None:
    results = write_sweep(tmp_path / "1", trials=4)
    seen = CliRunner().invoke(app, ["watch", str(results.folder)])
    assert seen.exit_code == 0, seen.output
    assert "starting" not in seen.stdout.splitlines()[-1]
    shown = CliRunner().invoke(app, ["watch", str(results.folder), "--once"])
    assert "Trial" in shown.stdout


@pytest.mark.parametrize("decided", [None, Decided([], is_all=False)])
def test_a_sweep_that_has_not_chosen_all_its_trials_can_be_resumed(
    tmp_path: Path, decided: Decided | None
) -> None:
    results = write_sweep(tmp_path, trials=2)
    assert CliRunner().invoke(app, ["watch", str(tmp_path)]).exit_code == 0
    (tmp_path / DECIDED).unlink()
    if decided is not None:
        results.write_decided(decided)
    assert CliRunner().invoke(app, ["watch", str(tmp_path)]).exit_code == os.EX_TEMPFAIL
