"""A run's records in MLflow, while the run goes on writing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.plan import RunPlan
from raysuite.records import Journal, Record, RunStopped, results_figures
from raysuite.records.system import SystemSample, system_file
from raysuite.track.store import Store
from raysuite.track.upload import Upload, _overall
from tests.fake_results import TWELVE_ROWS, run_records, write_results

ONE_RUN = TWELVE_ROWS.partition("matrix:")[0] + "strategy: single\n"


class SlowStore(Store):
    """Calls `meanwhile` when a run is sent, before its last tag."""

    def __init__(self, uri: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(uri, "experiment")
        self._meanwhile = meanwhile

    def finish(self, run_id: str, status: str, end: int | None) -> None:
        super().finish(run_id, status, end)
        self._meanwhile()


def test_records_that_are_appended_during_a_sync_are_written_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs seconds
    results = write_results(tmp_path / "results", spec=ONE_RUN, missing=[0])
    plan = RunPlan.model_validate(results.plans()[0])
    journal = Journal(results.journal_file(plan.run_id))
    first, later = run_records(plan)[:3], run_records(plan)[3:]

    def write(records: list[Record]) -> None:
        for record in records:
            journal.write(record)

    write(first)
    uri = (tmp_path / "mlruns").as_uri()
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
