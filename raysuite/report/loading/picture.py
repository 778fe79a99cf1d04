"""The plot as SVG and PNG, for papers: by matplotlib, which needs no browser."""

from __future__ import annotations

import html
from pathlib import Path

from raysuite.report.plot import Plot


def pictures(plot: Plot, folder: Path) -> None:
    """Write NAME.svg and NAME.png into `folder`; the same plot gives the same SVG."""
    import matplotlib
    from matplotlib.figure import Figure  # no pyplot: it would keep every figure it made

    groups = [_plain(name) for name in plot.layout["yaxis"]["categoryarray"]]
    figure = Figure(figsize=(7.0, 0.9 + plot.layout["height"] / 100), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(plot.traces)
    for place, trace in enumerate(plot.traces):
        shift = (place - (len(plot.traces) - 1) / 2) * height
        bar = trace["error_x"]
        axes.barh(
            [groups.index(_plain(name)) + shift for name in trace["y"]],
            trace["x"],
            height,
            xerr=[bar["arrayminus"], bar["array"]] if bar["visible"] else None,
            label=trace["name"],
            color=trace["marker"]["color"],
            error_kw={"linewidth": 1, "capsize": 2},
        )
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set_xlabel(plot.layout["xaxis"]["title"]["text"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": plot.name, "svg.fonttype": "none"}):
        figure.savefig(folder / f"{plot.name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{plot.name}.png", dpi=200)


def _plain(name: str) -> str:
    return html.unescape(name).replace("<br>", "\n")
