"""A run's records in MLflow, while the run goes on writing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raysuite.plan import RunPlan
from raysuite.records import Journal, Record
from raysuite.track.store import Store
from raysuite.track.upload import Upload
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
