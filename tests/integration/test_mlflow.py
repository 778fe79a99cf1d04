"""Journals in a real MLflow store: everything is there, and nothing twice."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.files import sqlite_uri
from raysuite.records import Journal, Results, RunFailed, results_figures
from raysuite.records.journal import Decided
from raysuite.report import build
from raysuite.track import sync
from raysuite.track.store import Store
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_sweeps import write_sweep

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
FOUR_ROWS = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace(
    "epochs: 6, global_batch: 64, target_accuracy: 0.9",
    "epochs: 2, global_batch: 64, target_accuracy: 0.5",  # which two epochs reach
)
TWO_ROWS = FOUR_ROWS.replace("[native, dali]", "[native]")
STEPS = 2 * 23
"""Of a run of those."""
TABLES = ("experiments", "runs", "params", "tags", "metrics", "latest_metrics")
LOST = RunFailed(run_id="", reason="lost", message="the workers died")
STOPPED = RunFailed(run_id="", reason="interrupted", message="Ctrl-C")


@pytest.fixture
def database(empty_store: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))


def query(database: Path, question: str) -> list[tuple]:
    with closing(sqlite3.connect(database, timeout=120)) as connection:
        return connection.execute(question).fetchall()


def sizes(database: Path) -> dict[str, int]:
    return {table: query(database, f"select count(*) from {table}")[0][0] for table in TABLES}


def content(database: Path) -> list[tuple]:
    """All metrics by the names of their runs: what a replay may not change."""
    return query(
        database,
        "select r.name, m.key, m.step, m.timestamp, m.value from metrics m "
        "join runs r on r.run_uuid = m.run_uuid order by 1, 2, 3, 4",
    )


def test_once_is_all_and_thrice_is_no_more(database, tmp_path):
    results = write_results(tmp_path / "results", spec=FOUR_ROWS)
    build(results, pictures=False)
    first = sync(results)
    assert first.ok
    assert (first.written, first.unchanged) == (4, 0)
    once = sizes(database)
    runs = results_figures(results)
    steps = sum(len(e.losses) for run in runs for e in run.epochs)
    epochs = sum(len(run.epochs) for run in runs)
    # made-up accuracies hang on the runs' ids: some may not reach the target
    reached = sum(run.end.time_to_accuracy is not None for run in runs)
    suite = 3 * 4  # throughput, speed-up and efficiency of each variant
    assert once["runs"] == 5
    assert once["metrics"] == 2 * steps + 7 * epochs + 12 * 4 + 2 * reached + suite
    for _ in range(2):
        again = sync(results)
        assert (again.ok, again.written, again.unchanged) == (True, 0, 4)
    assert sizes(database) == once
    # even where the mark was lost, a replay of identical rows adds none
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("delete from tags where key = 'raysuite.synced'")
        connection.commit()
    assert sync(results).written == 4
    assert sizes(database) == once


def test_runs_are_nested_with_status_times_and_artifacts(database, tmp_path):
    spec = FOUR_ROWS
    results = write_results(
        tmp_path / "results", spec=spec, fails={1: LOST, 2: STOPPED}, missing=[3]
    )
    build(results)
    assert sync(results).ok
    states = dict(query(database, "select name, status from runs"))
    assert states == {
        "made-up results": "KILLED",
        "ddp · native · 1 worker": "FINISHED",
        "ddp · dali · 1 worker": "FAILED",
        "ddp · native · 2 workers": "KILLED",
    }
    [(parent, root)] = query(
        database, "select run_uuid, artifact_uri from runs where name like '%results'"
    )
    nested = query(database, "select value from tags where key = 'mlflow.parentRunId'")
    assert nested == [(parent,)] * 3
    figures = results_figures(results)[0]
    begin, end = query(
        database, "select start_time, end_time from runs where name = 'ddp · native · 1 worker'"
    )[0]
    assert begin == round(figures.started.time * 1000)
    assert end == round(figures.end.time * 1000)
    assert root.startswith((tmp_path / "mlartifacts").as_uri())
    folder = Path(root.removeprefix("file://"))
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert {"spec.yaml", "plan.json", "report.html", "rows.csv", "rows.md"} <= names
    for plot in ("throughput.pdf", "throughput.png", "throughput.svg"):
        assert f"plots/{plot}" in names
    tags = dict(query(database, f"select key, value from tags where run_uuid = '{parent}'"))
    assert tags["raysuite.report"].endswith(f"/runs/{parent}/artifacts/report.html")
    assert f"]({tags['raysuite.report']})" in tags["mlflow.note.content"]
    assert len(list((tmp_path / "mlartifacts").rglob("journal.jsonl"))) == 3


def artifacts(database: Path, run: str) -> set[str]:
    [(root,)] = query(database, f"select artifact_uri from runs where name like '%{run}'")
    return {file.name for file in Path(root.removeprefix("file://")).iterdir()}


def test_the_best_specs_are_those_of_the_front_as_it_is(database, tmp_path):
    goals = ("accuracy", "throughput")
    folder = tmp_path / "swept"
    results = write_sweep(folder, scheduler="none", goals=goals)
    for name in ("best-77.yaml", "best-own.yaml"):  # of an earlier front, and a person's
        (folder / name).write_text("# Written by raysuite report: trial 77", "utf-8")
    assert sync(results).ok
    assert {"best-77.yaml", "best-own.yaml"} <= artifacts(database, "swept")
    (folder / "best-own.yaml").write_text("# my own", "utf-8")
    build(results, pictures=False)
    assert sync(results).ok
    front = {file.name for file in folder.glob("best-*.yaml")}
    assert len(front) > 2
    found = artifacts(database, "swept")
    assert {name for name in found if name.startswith("best")} == front
    assert {"search.json", "plan.json"} <= found


@pytest.mark.parametrize(("is_all", "status"), [(True, "FINISHED"), (False, "KILLED")])
def test_a_sweep_with_trials_yet_to_be_decided_was_stopped(database, tmp_path, is_all, status):
    results = write_sweep(tmp_path / "swept", trials=4)
    results.write_decided(Decided([], is_all))
    assert sync(results).ok
    assert query(database, "select status from runs where name like '%swept'") == [(status,)]


def test_a_trial_whose_plan_was_decided_anew_is_there_once(database, tmp_path):
    results = write_sweep(tmp_path / "swept", trials=4, fails={3: LOST})
    assert sync(results).ok
    *others, undecided = results.plans()
    first = query(database, "select run_uuid from runs where name = 'trial 3'")
    results.journal_file(undecided["run_id"]).unlink()
    write_sweep(tmp_path / "again", trials=4)
    decided = undecided | {"run_id": "decided-later"}
    results.write_plans([*others, decided])
    journal = Journal(results.journal_file("decided-later"))
    for record in Results(tmp_path / "again").records(undecided["run_id"]):
        journal.write(record.model_copy(update={"run_id": "decided-later"}))
    for _ in range(2):
        assert sync(results).ok
        states = "select lifecycle_stage, run_uuid from runs where name = 'trial 3' order by 1"
        (active, new), deleted = query(database, states)
        assert (active, deleted) == ("active", ("deleted", *first[0]))
        [(told,)] = query(
            database,
            f"select value from tags where run_uuid = '{new}' and key = 'raysuite.run_id'",
        )
        assert told == "decided-later"
    assert sizes(database)["runs"] == 6


@pytest.mark.parametrize("calls", [0, 3])
def test_a_sync_that_breaks_off_is_completed_by_the_next(database, tmp_path, monkeypatch, calls):
    results = write_results(tmp_path / "results", spec=FOUR_ROWS)
    whole = Store.log
    left = calls

    def breaks_off(self, *args, **kwargs):
        nonlocal left
        if left == 0:
            points = list(args[1])[:50] if len(args) > 1 else []
            whole(self, args[0], points)
            raise ConnectionError("the line is dead")
        left -= 1
        whole(self, *args, **kwargs)

    monkeypatch.setattr(Store, "log", breaks_off)
    broken = sync(results)
    assert "the line is dead" in broken.error
    assert "Nothing is lost" in str(broken)
    monkeypatch.setattr(Store, "log", whole)
    assert sync(results).ok
    assert sizes(database)["runs"] == 5
    found = content(database)
    assert len(found) == len(set(found))
    assert len([row for row in found if row[1] == "step/loss"]) == 4 * STEPS


@pytest.mark.thorough
def test_killed_at_any_moment(database, tmp_path):
    results = write_results(tmp_path / "results")
    command = [sys.executable, "-m", "raysuite", "sync", str(results.folder)]
    killed = 0
    while killed < 3:
        with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
            runs = sizes(database)["runs"]
            while process.poll() is None and sizes(database)["runs"] < runs + 3:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        if process.returncode == 0:
            break  # the few runs that were left were sent before it could be killed
        assert process.returncode == -signal.SIGKILL
        killed += 1
    assert killed
    assert sync(results).ok
    assert sizes(database)["runs"] == 13
    found = content(database)
    assert len(found) == len(set(found))
    assert len([row for row in found if row[1] == "step/loss"]) == 12 * 6 * 23


def test_several_at_once(database, tmp_path):
    results = write_results(tmp_path / "results", spec=TWO_ROWS)
    other = write_results(tmp_path / "other", spec=TWO_ROWS)
    command = [sys.executable, "-m", "raysuite", "sync"]
    started = [
        subprocess.Popen(
            [*command, str(folder)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        for folder in (results.folder, results.folder, other.folder)
    ]
    for process in started:
        _, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
    found = sizes(database)
    assert found["runs"] == 6
    assert found["experiments"] == 2
    steps = query(database, "select count(*) from metrics where key = 'step/loss'")
    assert steps == [(2 * 2 * STEPS,)]


def test_a_journal_that_grew_is_written_on(database, tmp_path):
    whole = write_results(tmp_path / "whole", spec=TWO_ROWS)
    results = write_results(tmp_path / "results", spec=TWO_ROWS, missing=[1])
    journal = results.journal_file(results.plans()[0]["run_id"])
    lines = journal.read_text("utf-8").splitlines(keepends=True)
    journal.write_text("".join(lines[:4]), "utf-8")
    assert sync(results).written == 1
    assert {"RUNNING"} == {state for (state,) in query(database, "select status from runs")}
    journal.write_text("".join(lines), "utf-8")
    shutil.copytree(whole.folder / "runs", results.folder / "runs", dirs_exist_ok=True)
    assert sync(results).written == 2
    assert {"FINISHED"} == {state for (state,) in query(database, "select status from runs")}
    grown = content(database)
    assert sync(whole).ok
    assert len(content(database)) == 2 * len(grown)


@pytest.mark.parametrize(
    "address", ["http://me:hush@127.0.0.1:9", "sqlite:////dev/null/mlflow.db", "nonsense://x"]
)
def test_a_store_out_of_reach_loses_nothing(tmp_path, address, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    results = write_results(tmp_path / "results", spec=FOUR_ROWS)
    begin = time.monotonic()
    summary = sync(results, address)
    assert time.monotonic() - begin < 60
    assert not summary.ok
    assert "raysuite sync" in str(summary)
    assert "hush" not in str(summary)


def test_a_deleted_experiment_is_reported_until_it_is_restored(database, tmp_path):
    results = write_results(tmp_path / "results", spec=FOUR_ROWS, missing=[1, 2, 3])
    assert sync(results).ok
    store = Store(sqlite_uri(database), "made-up")
    store.client.delete_experiment(store.experiment_id)
    summary = sync(results)
    assert not summary.ok
    assert f"mlflow experiments restore --experiment-id {store.experiment_id}" in summary.error
    store.client.restore_experiment(store.experiment_id)
    assert sync(results).ok


def test_the_command(database, tmp_path):
    from raysuite.cli import app

    results = write_results(tmp_path / "results", spec=FOUR_ROWS)
    done = CliRunner().invoke(app, ["sync", str(results.folder), "--experiment", "mine"])
    assert done.exit_code == 0, done.output
    assert "4 runs written to MLflow" in done.output
    assert ("mine",) in query(database, "select name from experiments")
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = CliRunner().invoke(app, ["sync", str(empty)])
    assert wrong.exit_code == 2, wrong.output


@pytest.mark.thorough
def test_a_sync_of_twelve_runs_takes_seconds(database, tmp_path):
    spec = TWELVE_ROWS.replace("epochs: 6", "epochs: 13")  # 299 steps
    results = write_results(tmp_path / "results", spec=spec)
    begin = time.process_time()
    assert sync(Results.open(results.folder)).ok
    assert time.process_time() - begin < 20
