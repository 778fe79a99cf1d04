"""Curves over steps and epochs: the mean over repeats that came differently far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.records import Row, RunFigures, make_rows, results_figures
from raysuite.report import curves
from raysuite.report.figures.styles import Styles
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
