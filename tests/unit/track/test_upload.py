"""A run's records in MLflow, while the run goes on writing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.plan import RunPlan
from raysuite.records import Journal, Record, RunStopped, make_rows, results_figures
from raysuite.records.statistics import Ratio
from raysuite.records.sweep import trials
from raysuite.records.system import SystemSample, system_file
from raysuite.track.store import Store
from raysuite.track.upload import BEST, TRIAL, Upload, _overall, ended_by
from tests.fake_results import TWELVE_ROWS, run_records, write_results
from tests.fake_sweeps import write_sweep

ONE_RUN = TWELVE_ROWS.partition("matrix:")[0] + "strategy: single\n"


class SlowStore(Store):
    """Calls `meanwhile` when a run is sent, before its last tag."""

    def __init__(self, uri: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(uri, "experiment")
        self._meanwhile = meanwhile

    def finish(self, run_id: str, status: str, end: int | None) -> None:
        super().finish(run_id, status, end)
        self._meanwhile()


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of files: a database needs seconds."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def test_records_that_are_appended_during_a_sync_are_written_by_the_next(
    tmp_path: Path, uri: str
) -> None:
    results = write_results(tmp_path / "results", spec=ONE_RUN, missing=[0])
    plan = RunPlan.model_validate(results.plans()[0])
    journal = Journal(results.journal_file(plan.run_id))
    first, later = run_records(plan)[:3], run_records(plan)[3:]

    def write(records: list[Record]) -> None:
        for record in records:
            journal.write(record)

    write(first)
    assert Upload(results, SlowStore(uri, lambda: write(later))).write_run(plan.run_id)
    store = Store(uri, "experiment")
    assert Upload(results, store).write_run(plan.run_id)
    assert not Upload(results, store).write_run(plan.run_id)
    # another node may write its last samples after the run's last record
    for sent in (1, 2):
        sample = SystemSample(
            time=sent,
            cpu_busy=0.5,
            memory_bytes=1,
            memory_total_bytes=2,
            process_bytes=1,
            received_bytes=0,
            sent_bytes=0,
        )
        with system_file(results.journal_file(plan.run_id).parent, "b").open("a") as file:
            file.write(sample.model_dump_json() + "\n")
        upload = Upload(results, store)
        assert upload.write_run(plan.run_id)
        run = upload.known[plan.run_id].info.run_id
        points = store.client.get_metric_history(run, "system/cpu_utilization_percentage")
        assert {(each.step, each.value) for each in points} == {(n + 1, 50.0) for n in range(sent)}
        assert not Upload(results, store).write_run(plan.run_id)


@pytest.mark.parametrize(
    ("states", "whole", "wanted"),
    [
        (["finished", "failed"], True, "FINISHED"),
        (["failed", "pruned"], True, "FINISHED"),
        (["failed", "failed"], True, "FAILED"),
        (["finished", "stopped"], True, "KILLED"),
        (["missing", "stopped"], True, "KILLED"),
        (["finished", "missing"], True, "RUNNING"),
        (["failed", "paused"], True, "RUNNING"),
        (["finished", "failed"], False, "KILLED"),
        (["finished", "paused"], False, "RUNNING"),
        ([], True, "FAILED"),
    ],
)
def test_the_status_of_a_folder_is_that_of_its_runs_together(
    tmp_path: Path, states: list[str], whole: bool, wanted: str
) -> None:
    """`whole`: whether a sweep has decided all of its trials."""
    [run] = results_figures(write_results(tmp_path, spec=ONE_RUN))
    paused = RunStopped(run_id=run.run_id, reason="interval", epoch=1, step=1)
    runs = [
        replace(run, status="stopped", stopped=paused)
        if state == "paused"
        else replace(run, status=state)
        for state in states
    ]
    assert _overall(runs, whole) == wanted


def test_a_sweeps_own_run_has_its_goals_its_best_and_its_data_set(tmp_path: Path, uri: str) -> None:
    results = write_sweep(tmp_path / "sweep", trials=2, scheduler="none")
    other, top = sorted(trials(results), key=lambda each: each.goals["accuracy"] or 0)
    for _ in range(2):  # the second one changes nothing
        store = Store(uri, "experiment")
        upload = Upload(results, store)
        for each in (top, other):
            upload.child(each.figures)
        upload.write_parent()
        [run] = [each for each in store.runs_of(upload.id) if each.data.tags.get(TRIAL) is None]
        best = [
            each.data.tags[TRIAL] for each in store.runs_of(upload.id) if BEST in each.data.tags
        ]
        assert best == [str(top.number)]
        tags = {key: value for key, value in run.data.tags.items() if "sweep." in key}
        assert tags == {
            "raysuite.sweep.goals": "accuracy",
            "raysuite.sweep.ended": "2",
            "raysuite.sweep.best": str(top.number),
        }
        assert run.data.metrics["best/accuracy"] == top.goals["accuracy"]
        assert run.data.params["search.trials"] == "2"
        sets = {each.dataset.name for each in run.inputs.dataset_inputs}
        assert sets == {"digits-train", "digits-val"}


def test_a_ratio_is_written_again_if_it_has_changed_alone(tmp_path: Path, uri: str) -> None:
    results, store = write_results(tmp_path / "suite", spec=ONE_RUN), Store(uri, "experiment")
    [row] = make_rows(results_figures(results))
    [run] = row.runs
    for ratio in (0.5, 0.5, 0.75):
        upload = Upload(results, store)
        upload.child(run)
        upload._write_ratios([replace(row, to_best=Ratio(ratio, None, None))])
    child = upload.known[run.run_id].info.run_id
    history = store.client.get_metric_history(child, "run/against_best")
    assert [each.value for each in history] == [0.5, 0.75]


def test_runs_are_nested_under_the_new_parent_after_a_user_deleted_the_first(
    tmp_path: Path, uri: str
) -> None:
    results, store = write_results(tmp_path / "suite", spec=ONE_RUN), Store(uri, "experiment")
    [run] = results_figures(results)
    upload = Upload(results, store)
    upload.child(run)
    store.client.delete_run(upload.parent().info.run_id)
    Upload(results, store).write_parent()
    parents = {
        each.data.tags.get("mlflow.parentRunId"): each.info.run_id
        for each in store.runs_of(upload.id)
    }
    assert parents.keys() == {None, parents[None]}


def test_trials_that_ended_while_the_journals_are_read_are_left_to_the_next_sync(
    tmp_path: Path,
) -> None:
    found = trials(write_sweep(tmp_path, trials=3, scheduler="none", missing=[2]))
    first, second = (each.figures.end.time for each in found[:2] if each.figures.end)
    assert first < second
    assert ended_by(first, found) == [found[0], found[2]]
    assert ended_by(second, found) == found
