"""The registry of metrics: what is declared there is in every form of a report, and in MLflow."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from raysuite.records import Results, make_rows, metrics, results_figures, rows
from raysuite.records.derive import Shares
from raysuite.records.metrics import METRICS, Metric, metrics_of
from raysuite.records.statistics import Stat, accuracy, summarize
from raysuite.report import raw_data, tables
from raysuite.report.text import WRITERS
from raysuite.spec.tasks import CLASSIFICATION, MetricFacts, TaskFacts
from raysuite.track import entries

DOCS = Path(__file__).parents[3] / "docs"
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
    for module in (rows, raw_data, tables, entries):
        monkeypatch.setattr(module, "metrics_of", lambda task: whole)
    runs = results_figures(Results(FOLDER))
    made = make_rows(runs)
    assert made[0].figures["epochs_made"].mean == 4
    assert raw_data.row_data(made[0])["epochs_made"]["n"] == 2
    assert raw_data.run_data(runs[0])["epochs_made"] == 4
    lines = list(csv.DictReader(io.StringIO(raw_data.csv_text(map(raw_data.row_data, made)))))
    assert float(lines[0]["epochs_made_mean"]) == 4
    assert "run/epochs_made" in {point.key for point in entries.run_points(runs[0])}


def test_percentiles_of_steps_are_of_all_epochs_after_the_warm_up() -> None:
    run = results_figures(Results(FOLDER))[0]
    made = {each.name: each for each in metrics_of.__wrapped__(CLASSIFICATION)}
    assert made["step_p50_seconds"].value(run) is None  # an old journal
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
            found = made[f"step_p{percent}_seconds"].value(timed)
            wanted = np.percentile(drawn, percent) if percent in known else None
            assert found == (None if wanted is None else pytest.approx(wanted))


def test_shares_of_a_profile_are_means_over_workers() -> None:
    run = results_figures(Results(FOLDER))[0]
    made = {each.name: each for each in metrics_of.__wrapped__(CLASSIFICATION)}
    assert made["share_data"].value(dataclasses.replace(run, shares=None)) is None
    parts = ("computation", "communication", "communication_exposed", "data", "data_exposed")
    each = {name: [0.01 * n, 0.03 * n] for n, name in enumerate((*parts, "other"), 1)}
    profiled = dataclasses.replace(run, shares=Shares(**each, slowest=0))
    found = {name: made[f"share_{name}"].value(profiled) for name in each}
    assert found == pytest.approx({name: 0.02 * n for n, name in enumerate(each, 1)})


def test_speeds_need_the_gate() -> None:
    failed = next(run for run in results_figures(Results(FOLDER)) if run.status == "failed")
    assert failed.gate == "passed"
    needing = {each.name for each in METRICS if each.needs_gate}
    assert {"throughput", "epoch_seconds", "time_to_accuracy", "mfu"} <= needing
    assert "final_accuracy" not in needing


def test_the_page_on_metrics_lists_what_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is committed, so that a review shows each change of a declaration."""
    made = metrics_of.__wrapped__(CLASSIFICATION)  # METRICS were made when the module was read
    monkeypatch.setattr(metrics, "METRICS", made)
    page = runpy.run_path(str(DOCS / "generated.py"))["metrics"]()
    assert (DOCS / "reference" / "metrics.md").read_text("utf-8").startswith(page)


def test_a_figure_of_each_step_is_averaged_over_the_last_epochs_finite_values() -> None:
    run = results_figures(Results(FOLDER))[0]
    made = {each.name: each for each in metrics_of.__wrapped__(CLASSIFICATION)}
    assert made["gradient_norm"].value(run) is None, "an old journal"
    assert made["gradient_norm"].value(dataclasses.replace(run, epochs=())) is None
    assert "figures" not in run.epochs[-1].model_dump()
    for values, mean in (([1.0, math.inf, 3.0, math.nan], 2.0), ([math.nan], None)):
        last = run.epochs[-1].model_copy(update={"figures": {"gradient_norm": values}})
        measured = dataclasses.replace(run, epochs=(*run.epochs[:-1], last))
        assert made["gradient_norm"].value(measured) == mean


def test_the_metrics_of_another_task_are_its_own() -> None:
    rmse, share = (
        MetricFacts(name=name, title=name.upper(), note="Note", unit=unit)
        for name, unit in (("rmse", ""), ("covered", "share"))
    )
    task = TaskFacts(name="odd", unit="samples", metrics=(rmse, share), primary="rmse")
    made = {each.name: each for each in metrics_of(task)}
    run = dataclasses.replace(
        results_figures(Results(FOLDER))[0],
        final={"rmse": 2.0, "covered": 0.5},
        best={"rmse": 1.0},
    )
    for name, title, unit, value, table, compared in (
        ("final_rmse", "RMSE", "", 2.0, "variants", "rmse"),
        ("final_covered", "COVERED", "share", 0.5, "costs", ""),
        ("best_rmse", "Best rmse", "", 1.0, "", ""),
    ):
        each = made[name]
        assert (each.title, each.unit, each.value(run), each.table) == (title, unit, value, table)
        assert (each.reduction, each.needs_gate, each.compared) == ("learnt", False, compared)
        assert each.note.startswith("Note, on the validation set ")
    assert made["throughput"].unit == "samples/s"
    assert made["device_joules"].unit == made["host_joules"].unit == "J/sample"
    assert (made["time_to_accuracy"].column, made["time_to_accuracy"].compared) == (
        "time_to_target_s",
        "time_to_target_s",
    )
    covered = metrics_of(task.model_copy(update={"primary": "covered"}))
    assert next(each for each in covered if each.name == "best_covered").unit == "share"


def test_repeats_are_reduced_as_each_metric_declares() -> None:
    """Of values in the place of runs."""
    timed, learnt, rounds = [0.2, 0.4, None, 0.3], [0.5, 0.6], [(n, 10.0 * n) for n in range(4)]

    def found(reduction: metrics.Reduction, learnt: list[float | None]) -> Stat | None:
        metric = Metric("x", "X", "", "", lambda each: each, reduction, needs_gate=False)
        return metric.reduce(timed, learnt, 40, rounds)

    assert found("mean", learnt) == summarize(timed, "positive", rounds)
    assert found("share", learnt) == summarize(timed, "share", rounds)
    assert found("accuracy", learnt) == accuracy(learnt, 40)
    assert found("learnt", [*learnt, None]) == summarize(learnt)
    assert found("all", learnt) == summarize(learnt)
    assert found("all", [*learnt, None]) is None


def test_a_projection_is_of_all_epochs_and_none_of_a_script() -> None:
    run = results_figures(Results(FOLDER))[0]
    whole = metrics.BY_NAME["all_epochs_seconds"]
    assert run.epoch_seconds is not None
    assert whole.value(run) == run.epoch_seconds * run.plan["spec"]["training"]["epochs"]
    assert whole.value(dataclasses.replace(run, epoch_seconds=None)) is None
    spec = {**run.plan["spec"], "script": {"command": ["train.py"]}}
    assert whole.value(dataclasses.replace(run, plan={**run.plan, "spec": spec})) is None
