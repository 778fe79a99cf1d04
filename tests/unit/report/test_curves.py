"""Curves over steps and epochs: the mean over repeats that came differently far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.records import Row, RunFigures, make_rows, results_figures
from raysuite.report import collect, curves
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import Plot
from tests.fake_results import TWELVE_ROWS, write_results

ONE_ROW = TWELVE_ROWS.partition("matrix:")[0] + "strategy: single\n"


def row_of(folder: Path, spec: str = ONE_ROW, repeats: int = 2) -> Row:
    [row] = make_rows(results_figures(write_results(folder, spec, repeats)))
    return row


def with_losses(run: RunFigures, losses: list[float]) -> RunFigures:
    epoch = run.epochs[0].model_copy(update={"losses": losses})
    return replace(run, epochs=(epoch,))


def test_each_point_of_the_loss_is_of_the_same_steps_of_all_repeats(tmp_path):
    row = row_of(tmp_path)
    steps = [float(step) for step in range(1, 1201)]
    whole, cut = row.runs
    runs = (with_losses(whole, steps), with_losses(cut, steps[:400]))
    rows = [replace(row, runs=runs)]
    plot = curves.loss(rows, Styles(rows))
    assert plot
    [trace] = plot.traces
    assert len(trace["x"]) == curves.MOST_POINTS
    assert trace["y"] == pytest.approx(trace["x"])


def largest_batch(folder: Path, epochs: int, repeats: int) -> tuple[Plot, Plot]:
    spec = ONE_ROW.replace("epochs: 6", f"epochs: {epochs}")
    spec += "matrix: {training.global_batch: [32, 64]}\n"
    plots = {plot.name: plot for plot in collect(write_results(folder, spec, repeats)).plots}
    return plots["accuracy-largest"], plots["accuracy-batch"]


def test_many_epochs_have_intervals_at_some_of_them_and_at_the_last(tmp_path):
    plot, _ = largest_batch(tmp_path, epochs=100, repeats=2)
    widths = plot.traces[-1]["error_y"]["array"]
    assert [place for place, width in enumerate(widths) if width] == list(range(0, 100, 3))
    assert "95 % intervals" in plot.note


def test_intervals_are_told_only_where_they_are_drawn(tmp_path):
    for repeats in (1, 2):  # the validation set is finite: an accuracy of one run has an interval
        for plot in largest_batch(tmp_path / str(repeats), epochs=2, repeats=repeats):
            assert plot.note.endswith(": means over repeats with 95 % intervals.")
