"""The registry of metrics: what is declared there is in every form of a report, and in MLflow."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

from raysuite.records import Results, make_rows, metrics, results_figures, rows
from raysuite.records.metrics import METRICS, Metric
from raysuite.report import data, tables
from raysuite.report.text import WRITERS
from raysuite.track import entries

FOLDER = Path(__file__).parents[2] / "golden" / "results" / "suite"


def test_each_has_its_own_names_and_a_way_to_be_written() -> None:
    for names in (
        [each.name for each in METRICS],
        [each.column for each in METRICS],
        [each.mlflow or each.name for each in METRICS],
    ):
        assert len(names) == len(set(names))
    assert {each.unit for each in METRICS} <= set(WRITERS)


def test_one_declaration_is_all_that_a_new_metric_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Metric(
        "epochs_made", "Epochs made", "", "Epochs.", lambda run: len(run.epochs), table="variants"
    )
    whole = (*METRICS, new)
    for module in (rows, data, tables, entries):
        monkeypatch.setattr(module, "metrics_of", lambda task: whole)
    runs = results_figures(Results(FOLDER))
    made = make_rows(runs)
    assert made[0].figures["epochs_made"].mean == 4
    assert data.row_data(made[0])["epochs_made"]["n"] == 2
    assert data.run_data(runs[0])["epochs_made"] == 4
    lines = list(csv.DictReader(io.StringIO(data.csv_text(made))))
    assert float(lines[0]["epochs_made_mean"]) == 4
    assert "run/epochs_made" in {point.key for point in entries.run_points(runs[0])}


def test_percentiles_of_steps_are_of_all_epochs_after_the_warm_up() -> None:
    run = results_figures(Results(FOLDER))[0]
    assert metrics.BY_NAME["step_p50_seconds"].value(run) is None  # an old journal
    rng = np.random.default_rng(0)
    for steps, known in ((50, (50, 95)), (60, (50, 95, 99))):
        drawn = rng.gamma(4.0, 0.01, 2 * steps - 10 * (steps == 50))
        parts = np.array_split(drawn, 2)
        epochs = tuple(
            epoch.model_copy(update={"step_seconds": part.tolist()})
            for epoch, part in zip(run.epochs, parts, strict=False)
        )
        timed = dataclasses.replace(run, epochs=epochs)
        for percent in (50, 95, 99):
            found = metrics.BY_NAME[f"step_p{percent}_seconds"].value(timed)
            wanted = np.percentile(drawn, percent) if percent in known else None
            assert found == (None if wanted is None else pytest.approx(wanted))


def test_speeds_need_the_gate() -> None:
    failed = next(run for run in results_figures(Results(FOLDER)) if run.status == "failed")
    assert failed.gate == "passed"
    needing = {each.name for each in METRICS if each.needs_gate}
    assert {"throughput", "epoch_seconds", "time_to_accuracy", "mfu"} <= needing
    assert "final_accuracy" not in needing
