"""A run that dies after MLflow was told of it, and is taken up: each value stands there once."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from raysuite.records import (
    EpochFinished,
    Journal,
    Record,
    RunFailed,
    RunStarted,
    RunStopped,
    read_journal,
)
from raysuite.track import sync
from tests.fake_results import TWELVE_ROWS, write_results

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ONE_RUN = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2]", "[1]")
LATER_S = 500.0


def steps(database: Path, key: str) -> list[int]:
    with closing(sqlite3.connect(database)) as connection:
        question = (
            "select step from metrics join runs using (run_uuid) "
            "where key = ? and lifecycle_stage = 'active' order by step"
        )
        return [step for (step,) in connection.execute(question, (key,))]


@pytest.mark.parametrize(
    ("ends", "from_epoch"),
    [("dies", 1), ("stops", 2), ("dies", 0), ("fails", 0), ("fails", 1)],
    ids=["dies", "stops", "dies-and-has-no-checkpoint", "fails-and-begins-anew", "fails"],
)
def test_epochs_that_are_trained_again_stand_once(
    tmp_path: Path, empty_store: Path, ends: str, from_epoch: int
) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    results = write_results(tmp_path / "results", spec=ONE_RUN, missing=[1])
    run_id = results.plans()[0]["run_id"]
    file = results.journal_file(run_id)
    whole = list(read_journal(file))
    file.unlink()

    def write(records: list[Record]) -> None:
        journal = Journal(file)
        for record in records:
            journal.write(record)

    began, verdict, first, second, *_ = whole
    assert isinstance(began, RunStarted)
    assert isinstance(second, EpochFinished)
    write([began, verdict, first, second])
    if ends == "stops":
        write([RunStopped(run_id=run_id, time=second.time, reason="time_limit", epoch=2, step=50)])
    if ends == "fails":
        write([RunFailed(run_id=run_id, time=second.time, reason="error", message="lost")])
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert sync(results, address).written == 1
    # the checkpoint of an epoch is whole when the next one has ended
    assert steps(tmp_path / "mlflow.db", "epoch/val_accuracy") == (
        [1] if ends == "dies" else [1, 2]
    )

    again = [record.model_copy(update={"time": record.time + LATER_S}) for record in whole[2:]]
    begins = began.model_copy(update={"time": began.time + LATER_S, "first_epoch": from_epoch})
    write([begins, verdict, *again[from_epoch:]])
    assert sync(results, address).written == 1
    assert sync(results, address).written == 0
    epochs = len([record for record in whole if isinstance(record, EpochFinished)])
    assert steps(tmp_path / "mlflow.db", "epoch/val_accuracy") == list(range(1, epochs + 1))
    found = steps(tmp_path / "mlflow.db", "step/loss")
    assert found == list(range(1, epochs * len(second.losses) + 1))
