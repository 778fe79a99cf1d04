"""The registry of metrics: what is declared there is in every form of a report, and in MLflow."""

from __future__ import annotations

import csv
import io
from pathlib import Path

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
        "epochs_made", "Epochs made", "", lambda run: len(run.epochs), "Epochs.", table="variants"
    )
    whole = (*METRICS, new)
    for module in (metrics, rows, data, tables, entries):
        monkeypatch.setattr(module, "METRICS", whole)
    runs = results_figures(Results(FOLDER))
    made = make_rows(runs)
    assert made[0].figures["epochs_made"].mean == 4
    assert data.row_data(made[0])["epochs_made"]["n"] == 2
    assert data.run_data(runs[0])["epochs_made"] == 4
    lines = list(csv.DictReader(io.StringIO(data.csv_text(made))))
    assert float(lines[0]["epochs_made_mean"]) == 4
    assert "run/epochs_made" in {point.key for point in entries.run_points(runs[0])}


def test_speeds_need_the_gate() -> None:
    failed = next(run for run in results_figures(Results(FOLDER)) if run.status == "failed")
    assert failed.gate == "passed"
    needing = {each.name for each in METRICS if each.needs_gate}
    assert {"throughput", "epoch_seconds", "time_to_accuracy", "mfu"} <= needing
    assert "final_accuracy" not in needing
