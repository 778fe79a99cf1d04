"""All plots of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records import Row
from raysuite.report import bars, curves, lines
from raysuite.report.plot import Look, Plot


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """The plots for which there is anything to draw."""
    look = Look(rows)
    made = (
        bars.throughput(rows),
        lines.speed_up(rows, look),
        lines.efficiency(rows, look),
        bars.epoch_time(rows),
        bars.data_wait(rows),
        curves.accuracy(rows, look),
        curves.loss(rows, look),
        bars.memory(rows),
        curves.learning_rate(rows, look),
    )
    return [plot for plot in made if plot is not None]
