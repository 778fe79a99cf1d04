"""One plot as a page of its own; plotly.min.js lies beside it, once for all."""

from __future__ import annotations

import base64

from markupsafe import Markup

from raysuite import __version__
from raysuite.report.page import script_json, templates
from raysuite.report.plot import Plot

SCRIPT = "plotly.min.js"


def plot_page(plot: Plot, picture: bytes | None = None) -> str:
    """The page; it shows `picture`, a PNG, where it finds no SCRIPT, and asks no host for it."""
    encoded = base64.b64encode(picture).decode("ascii") if picture else ""
    template = templates().get_template("plot.html.jinja")
    written: str = template.render(
        plot=plot,
        picture=encoded,
        figure=Markup(script_json(plot.figure)),
        version=__version__,
    )
    return written


def script() -> str:
    """The content of SCRIPT."""
    from plotly.offline import get_plotlyjs

    written: str = get_plotlyjs()
    return written
