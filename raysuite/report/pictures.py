"""A plot as SVG and PNG, for papers: by matplotlib, which needs no browser and no network.

It reads the part of plotly's JSON that `raysuite.report` writes: lines with markers, bars, their
intervals, panels in a grid.
"""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raysuite.report.plot import Plot, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
DPI = 200
INCHES = 1 / 92
"""Of one of the page's pixels."""
MOST_ENTRIES = 24
"""Of a legend; a longer one would leave no room for the plot, and the page has it."""

MOST_TICKS = 24
"""Numbers along an axis of bars; of more, some are left out."""

_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (8, 3)),
}
_STAIRS = {"hv": "steps-post", "vh": "steps-pre"}
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
    "triangle-down": "v",
}
_SETTINGS: Any = {
    "svg.hashsalt": "raysuite",  # the same plot gives the same bytes
    "svg.fonttype": "none",  # text stays text, for those who edit it
    "text.parse_math": False,  # a dollar sign in a name is one
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E9ED",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def pictures(plot: Plot) -> dict[str, bytes]:
    """The plot as a file for each of SUFFIXES."""
    import io

    import matplotlib

    written: dict[str, bytes] = {}
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes, and the SVG holds its text
        warnings.filterwarnings("ignore", message=".*missing from font")
        figure = _figure(plot)
        figure.draw_without_rendering()  # lays it out, which is most of the work, once for all
        figure.set_layout_engine()  # none: "none" would have each file drawn twice
        for suffix in SUFFIXES:
            stream = io.BytesIO()
            stamp = {"Date": None} if suffix == ".svg" else {"Software": None}
            figure.savefig(stream, format=suffix[1:], dpi=DPI, metadata=stamp)
            written[suffix] = stream.getvalue()
    return written


def _figure(plot: Plot) -> Figure:
    from matplotlib.figure import Figure  # no pyplot: it would keep every figure that it made

    layout = plot.layout
    grid = layout.get("grid", {"rows": 1, "columns": 1})
    titles = layout.get("meta", {}).get("panels", [""])
    width = 7.2 if grid["columns"] == 1 else 10.0
    height = min(float(layout["height"]) * INCHES + 0.4, 30.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(_plain(plot.title), fontsize=11)
    drawn: list[Axes] = []
    for place, title in enumerate(titles):
        axes = figure.add_subplot(grid["rows"], grid["columns"], place + 1)
        number = str(place + 1) if place else ""
        _panel(axes, plot, number)
        axes.set_title(_plain(title), loc="left", fontsize=9)
        drawn.append(axes)
    if "matches" in layout.get("yaxis2", {}) and layout["yaxis"].get("type") != "category":
        limits = [axes.get_ylim() for axes in drawn]
        for axes in drawn:
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    _legend(figure, drawn, layout.get("showlegend", True))
    return figure


def _panel(axes: Axes, plot: Plot, number: str) -> None:
    x, y = (plot.layout.get(f"{name}axis{number}", {}) for name in "xy")
    traces = [t for t in plot.traces if t.get("xaxis", "x") == f"x{number}"]
    bars = [trace for trace in traces if trace["type"] == "bar"]
    if bars:
        lying = bars[0].get("orientation") == "h"
        groups = _categories(y if lying else x, bars, "y" if lying else "x")
        _bars(axes, bars, groups, lying, plot.layout.get("barmode", "group") == "stack")
    for trace in traces:
        if trace["type"] == "scatter":
            _line(axes, trace)
    for each, name in ((x, "x"), (y, "y")):
        _axis(axes, each, name)


def _categories(axis: dict[str, Any], bars: Sequence[Trace], name: str) -> list[str]:
    present = list(dict.fromkeys(value for trace in bars for value in trace[name]))
    ordered = [value for value in axis.get("categoryarray", ()) if value in present]
    return ordered or present


def _bars(axes: Axes, bars: Sequence[Trace], groups: list[str], lying: bool, stacked: bool) -> None:
    thick = 0.8 if stacked else 0.8 / len(bars)
    base = dict.fromkeys(groups, 0.0)
    for place, trace in enumerate(bars):
        names, values = (trace["y"], trace["x"]) if lying else (trace["x"], trace["y"])
        shift = 0.0 if stacked else (place - (len(bars) - 1) / 2) * thick
        spots = [groups.index(name) + shift for name in names]
        starts = [base[name] if stacked else 0.0 for name in names]
        error = _error(trace.get("error_x" if lying else "error_y"))
        options: dict[str, Any] = {
            "color": trace["marker"]["color"],
            "label": _plain(trace["name"]),
            "error_kw": {"linewidth": 0.9, "capsize": 2},
        }
        if lying:
            axes.barh(spots, values, thick, left=starts, xerr=error, **options)
        else:
            axes.bar(spots, values, thick, bottom=starts, yerr=error, **options)
        for spot, value, said in zip(spots, values, trace.get("text", ()), strict=False):
            axes.text(value, spot, f" {said}", va="center", fontsize=8)
        for name, value in zip(names, values, strict=True):
            base[name] += value
    ticks, labels = range(len(groups)), [_plain(name) for name in groups]
    if lying:
        axes.set_yticks(ticks, labels)
        axes.invert_yaxis()  # first variant on top
        axes.grid(False, axis="y")
    else:
        long = max(map(len, labels), default=0) * len(labels) > 40
        every = math.ceil(len(labels) / MOST_TICKS) if max(map(len, labels), default=0) < 4 else 1
        axes.set_xticks(
            ticks[::every],
            labels[::every],
            rotation=30 if long and every == 1 else 0,
            ha="right" if long and every == 1 else "center",
        )
        axes.grid(False, axis="x")


def _line(axes: Axes, trace: Trace) -> None:
    line, marker = trace.get("line", {}), trace.get("marker", {})
    mode = trace.get("mode", "lines")
    if "text" in mode:
        _texts(axes, trace)
    if mode == "text":
        return
    bar = trace.get("error_y", {})
    axes.errorbar(
        trace["x"],
        trace["y"],
        yerr=_error(bar),
        color=line.get("color", marker.get("color")),
        linestyle=_DASHES[line.get("dash", "solid")] if "lines" in mode else "none",
        linewidth=0.7 * line.get("width", 2),
        drawstyle=_STAIRS.get(line.get("shape", ""), "default"),
        marker=_MARKERS[marker.get("symbol", "circle")] if "markers" in mode else None,
        markersize=0.7 * marker.get("size", 6),
        alpha=trace.get("opacity"),
        capsize=bar.get("width", 4) / 2,
        label=_plain(trace["name"]) if trace.get("showlegend", True) else None,
    )


def _texts(axes: Axes, trace: Trace) -> None:
    """Texts on the right of their points, readable above lines."""
    from matplotlib.patheffects import withStroke

    for x, y, said in zip(trace["x"], trace["y"], trace["text"], strict=True):
        drawn = axes.annotate(
            _plain(said), (x, y), xytext=(2, 0), textcoords="offset points", va="center"
        )
        drawn.set(fontsize=7.5, zorder=5, path_effects=[withStroke(linewidth=2, foreground="w")])


def _error(bar: dict[str, Any] | None) -> list[list[float]] | None:
    if not bar or not bar["visible"]:
        return None
    finite = [
        [value if math.isfinite(value) else 0.0 for value in bar[side]]
        for side in ("arrayminus", "array")
    ]
    return finite


def _axis(axes: Axes, given: dict[str, Any], name: str) -> None:
    from matplotlib.ticker import NullLocator, PercentFormatter

    axis = getattr(axes, f"{name}axis")
    if not given.get("visible", True):
        axis.set_visible(False)
        axes.spines["left" if name == "y" else "bottom"].set_visible(False)
    axis.set_label_text(_plain(given.get("title", {}).get("text", "")))
    if given.get("type") == "log":
        axes.set(**{f"{name}scale": "log"})
    if "tickvals" in given:
        axis.set_ticks(given["tickvals"], given["ticktext"])
        axis.set_minor_locator(NullLocator())
    if given.get("showgrid") is False:
        axes.grid(False, axis="x" if name == "x" else "y")
    if str(given.get("tickformat", "")).endswith("%"):
        axis.set_major_formatter(PercentFormatter(1.0))
    if "range" in given:
        axes.set(**{f"{name}lim": given["range"]})
    elif given.get("rangemode") == "tozero" and given.get("type") != "log":
        axes.set(**{f"{name}lim": (0.0, None)})
    if clip := given.get("autorangeoptions"):
        low, high = getattr(axes, f"get_{name}lim")()
        axes.set(**{f"{name}lim": (max(low, clip["clipmin"]), min(high, clip["clipmax"]))})


def _legend(figure: Figure, drawn: Sequence[Axes], wanted: bool) -> None:
    """One legend below all panels; each name once."""
    entries: dict[str, Any] = {}
    for axes in drawn:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if wanted and 1 < len(entries) <= MOST_ENTRIES:
        longest = max(map(len, entries))
        columns = max(1, min(4, int(figure.get_figwidth() * 13 / (longest + 6))))
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=columns, fontsize=8
        )


def _plain(text: str) -> str:
    """As text: plotly's names are escaped, and broken by tags."""
    return html.unescape(text.replace("<br>", "\n"))
