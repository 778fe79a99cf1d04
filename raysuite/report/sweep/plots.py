"""All plots of a sweep, in the order of its page."""

from __future__ import annotations

from raysuite.report.plot import Plot
from raysuite.report.sweep.curves import curves
from raysuite.report.sweep.fronts import fronts
from raysuite.report.sweep.importance import Importances, importance_plot
from raysuite.report.sweep.parallel import parallel
from raysuite.report.sweep.spending import anytime, costs
from raysuite.report.sweep.study import Study

WIDE = frozenset(("parallel", "learning-curves"))
"""Names of plots that want the page's whole width."""


def sweep_plots(study: Study, found: Importances) -> list[Plot]:
    """The plots for which there is anything to draw."""
    made = (
        *fronts(study),
        parallel(study),
        curves(study),
        importance_plot(found),
        anytime(study),
        costs(study),
    )
    return [plot for plot in made if plot is not None]
