"""Everything that reads figures has the task's units and metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

from raysuite.records.derive import run_figures
from raysuite.records.rows import make_rows
from raysuite.report.data import row_data, run_data
from raysuite.report.plots import make_plots
from raysuite.report.tables import costs_sheet, markdown_sheet, rows_latex, rows_sheet
from raysuite.track.entries import run_points
from tests.task_sets import BATCH
from tests.unit.tasks.conftest import plan_of, run


def test_figures_of_a_language_model_are_of_tokens_and_perplexity(tmp_path: Path) -> None:
    training = {"epochs": 3, "global_batch": BATCH, "target": 1000.0}
    plan = plan_of("language_model", tmp_path, training=training)
    records = run(plan)
    figures = run_figures(plan.model_dump(mode="json"), records)
    [row] = rows = make_rows([figures])
    tokens = len((tmp_path / "train.txt").read_bytes()) - 1
    assert [epoch.images for epoch in figures.epochs] == 3 * [tokens]
    assert figures.best["perplexity"] == min(e.validation["perplexity"] for e in figures.epochs)
    assert figures.epochs_to_accuracy == 1
    assert row.final is not None
    assert row.final.mean == figures.epochs[-1].validation["perplexity"]
    data = row_data(row)
    assert data["throughput_tokens_per_s"]["mean"] == figures.throughput
    assert data["final_perplexity"]["mean"] == row.final.mean
    assert data["time_to_target_s"]["mean"] == figures.time_to_accuracy
    costs = costs_sheet(rows)
    assert costs is not None
    points = {point.key: point.value for point in run_points(figures)}
    assert points["run/tokens_per_second"] == figures.throughput
    assert points["run/final_perplexity"] == row.final.mean
    assert points["epoch/val_next_token"] == figures.final["next_token"]
    plots = {plot.name: plot for plot in make_plots(rows)}
    assert {"perplexity", "throughput", "time-to-target", "loss"} <= plots.keys()
    written = [
        markdown_sheet(rows_sheet(rows)),
        markdown_sheet(costs),
        rows_latex(rows),
        json.dumps([data, run_data(figures)]),
        *points,
        *map(repr, plots.values()),
    ]
    for text in written:
        assert re.findall(r"\w*\W?(?:[iI]mage|ccurac)\w*", text) == []
    assert "Perplexity" in written[0]
    assert "Tokens/s" in written[0]
