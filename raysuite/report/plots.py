"""All plots of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records import Row
from raysuite.report import bars, curves
from raysuite.report.figures import batches, scaling, stacks, target, works
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import Plot


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """The plots for which there is anything to draw."""
    styles = Styles(rows)
    made = (
        bars.throughput(rows),
        target.time_to_accuracy(rows, styles),
        scaling.throughput(rows, styles),
        scaling.speed_up(rows, styles),
        scaling.efficiency(rows, styles),
        scaling.efficiency_per_model(rows, styles),
        works.speed_up(rows, styles),
        works.epoch_time(rows, styles) or bars.epoch_time(rows),
        stacks.shares(rows),
        bars.data_wait(rows),
        batches.accuracy(rows, styles),
        batches.largest_batch(rows, styles),
        curves.accuracy(rows, styles),
        curves.loss(rows, styles),
        curves.learning_rate(rows, styles),
        works.memory(rows, styles) or bars.memory(rows),
    )
    return [plot for plot in made if plot is not None]
