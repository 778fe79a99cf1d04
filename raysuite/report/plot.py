"""Plots as data: traces, layers and axes. A plot becomes one Vega-Lite specification, which the
page shows, and from which vl-convert makes SVG, PDF and PNG without a browser or a network.

A trace is a dictionary. Its lists are columns of equal length; every other value is common to all
its points. Each layer draws the traces of one `kind`. Keys of a trace:

    kind, panel, series    the layers that draw the trace, its panel, its entry in the legend
    x, y                   position of a point
    low, high              ends of a point's interval; None for a point without an interval
    tip                    text of the tooltip, lines separated by newlines
    key                    texts separated by newlines; the page's search shows a point if one of
                           these texts contains all words that were typed
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Trace = dict[str, Any]
Layer = dict[str, Any]

# After Okabe and Ito 2008, "Color Universal Design", each with a contrast of at least 3:1 on the
# page's light and dark background (WCAG 2.2, success criterion 1.4.11).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B37700", "#2E93CC", "#8C6D31", "#7F7F7F")
SHADES = ("#1B9AA0", "#2E93CC", "#3D7CC2", "#5C63C4", "#8150B8", "#A2459B", "#B53F72", "#B04A4A")
"""Colours of ascending numbers, such as numbers of workers: hues from light to deep."""
NEUTRAL = "#878D96"
DASHES = ((1, 0), (6, 4), (2, 3), (8, 3, 2, 3), (12, 4))
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up"),
    *("cross", "triangle-down", "triangle-right", "triangle-left"),
)
PANEL_HEIGHT = 260
"""Pixels of one row of panels."""
BAR_PX = 15
BAR_GAP = 1.25
"""Height of a bar and the gap after it, relative to the height of the bar."""
MOST_BANDS = 6
PAPER_PX = 480
"""Width in pixels of a picture with one panel: 5 inches, for a column of a paper."""

LONGEST_NAME_PX = 420
"""Largest width in pixels of a name in a legend, or at a bar of a picture; longer names are cut."""


class Style(NamedTuple):
    color: str
    dash: Sequence[int] = DASHES[0]
    symbol: str = SYMBOLS[0]


@dataclass(frozen=True)
class Plot:
    name: str
    """Part of file names and of the page's anchors."""
    title: str
    note: str
    """How to read the plot, in a sentence or two."""
    description: str
    """A description of the plot for readers who cannot see it."""
    traces: list[Trace]
    layers: list[Layer]
    x: Layer
    """Vega-Lite's definition of the channel, without `field`."""
    y: Layer
    styles: Mapping[str, Style] = field(default_factory=dict)
    """Entries of the legend, in its order; if empty, each trace has its own `color`."""
    panels: Sequence[str] = ("",)
    columns: int = 3
    """Largest number of panels in a row."""
    height: int = PANEL_HEIGHT
    """Height in pixels of a panel, or, with `bars_per_label`, of one bar."""
    same_y: bool = True
    """Whether all panels have the same y axis."""
    bars_per_label: int = 0
    """For horizontal bars: number of bars at each label. 0 for other plots."""
    can_be_log: bool = False
    """Whether the page offers a logarithmic y axis for the plot."""
    wide: bool = False
    """Whether the plot needs the full width of the page."""

    def spec(self, width: float) -> dict[str, Any]:
        """The Vega-Lite specification of the plot, `width` pixels wide. The page changes only the
        width, the number of columns, and which traces are shown."""
        columns = min(self.columns, len(self.panels))
        unit: dict[str, Any] = {
            "width": max(120.0, width / columns - 60),
            "height": self._height(),
            "encoding": {"x": {"field": "x", **self.x}, "y": {"field": "y", **self.y}},
            "layer": [self._layer(each) for each in self.layers if self._is_drawn(each)],
        }
        whole: dict[str, Any] = {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "config": CONFIG,
            "params": [
                {"name": "legendColumns", "value": self.legend_columns(width)},
                {"name": "labelWidth", "value": LONGEST_NAME_PX},
            ],
            "data": {"values": [point for trace in self.traces for point in points(trace)]},
        }
        if len(self.panels) == 1:
            return whole | unit
        panel = {
            **{"field": "panel", "type": "nominal", "title": None, "sort": list(self.panels)},
            "header": {"labelLimit": width / columns - 30},
        }
        whole |= {"facet": panel, "columns": columns, "spec": unit, "spacing": 26}
        axes = {"x": "independent", "y": "independent"}
        scales = {} if self.same_y else {"y": "independent"}
        return whole | {"resolve": {"axis": axes, "scale": scales}}

    def _height(self) -> float:
        if not self.bars_per_label:
            return self.height
        names = {name for trace in self.traces for name in trace["y"]}
        return BAR_GAP * self.height * self.bars_per_label * len(names)

    def legend_columns(self, width: float) -> int:
        longest = max(map(len, self.styles), default=1)
        return max(1, int(width / (6.2 * longest + 40)))

    def _is_drawn(self, layer: Layer) -> bool:
        mine = [trace for trace in self.traces if trace["kind"] == layer["kind"]]
        if _HAS_ENDS not in layer.get("transform", ()):
            return bool(mine)
        return any(end is not None for trace in mine for end in trace.get("low", ()))

    def _layer(self, layer: Layer) -> Layer:
        """A Vega-Lite layer with the colours, dashes and symbols of the series."""
        mark, own = layer["mark"], layer.get("encoding", {})
        encoding: Layer = {"color": self._channel("color")}
        if self.styles and mark["type"] == "line":
            encoding["strokeDash"] = self._channel("dash")
        if self.styles and mark["type"] == "point" and "shape" not in mark:
            encoding["shape"] = self._channel("symbol")
        chosen = {"filter": f"datum.kind === '{layer['kind']}'"}
        transform = [chosen, *layer.get("transform", ())]
        return {"mark": mark, "transform": transform, "encoding": encoding | own}

    def _channel(self, name: str) -> Layer:
        """A channel for one property of styles; the legend has dashes for lines without points."""
        if not self.styles:
            return {"field": "color", "type": "nominal", "scale": None, "legend": None}
        kinds = {layer["mark"]["type"] for layer in self.layers}
        legend: Layer = {"title": None, "columns": {"expr": "legendColumns"}}
        if "point" not in kinds and "line" in kinds:
            legend |= {"symbolType": "stroke", "symbolSize": 300}
        hidden = len(self.styles) < 2 or (name == "dash" and "point" in kinds)
        # without a legend, the order is reversed: Vega-Lite warns if it merges equal domains
        styles = dict(list(self.styles.items())[:: -1 if hidden else 1])
        looks = [getattr(style, name) for style in styles.values()]
        return {
            "field": "series",
            "type": "nominal",
            "scale": {
                "domain": list(styles),
                "range": [list(look) if name == "dash" else look for look in looks],
            },
            "legend": None if hidden else legend,
        }

    def data(self) -> dict[str, Any]:
        """The data from which the page draws the plot. Traces are written as columns, which take a
        tenth of the bytes of rows."""
        spec = self.spec(600)
        spec.pop("config")
        return {
            "spec": spec | {"data": {"values": []}},
            "traces": self.traces,
            "columns": self.columns,
            "panels": list(self.panels),
            "longest": max(map(len, self.styles), default=0),
            "label_px": BAR_GAP * self.height * self.bars_per_label,
        }


def trace(kind: str, rows: Iterable[Mapping[str, Any]], **same: Any) -> Trace:
    """A trace of the points `rows`, dicts with the same keys. `same`: values that all points
    share."""
    rows = list(rows)
    columns = {name: [row[name] for row in rows] for row in rows[:1] for name in row}
    return {"kind": kind, **same, **columns}


def points(trace: Trace) -> Iterator[Trace]:
    columns = {key: value for key, value in trace.items() if isinstance(value, list)}
    same = {key: value for key, value in trace.items() if key not in columns}
    rows = zip(*columns.values(), strict=True)
    return ({**same, **dict(zip(columns, row, strict=True))} for row in rows)


# Layers: how the traces of a kind are drawn.

TIP = {"tooltip": {"field": "tip", "type": "nominal"}}
_HAS_ENDS = {"filter": "isValid(datum.low)"}
INK = {"color": {"value": "currentColor"}}


def layer(
    kind: str, mark: str, encoding: Layer | None = None, *, ends: bool = False, **look: Any
) -> Layer:
    """A Vega-Lite layer that draws the traces of `kind` with a mark and its properties `look`. The
    layer has a tooltip unless `encoding` is given. `ends`: draw only points with an interval."""
    transform = {"transform": [_HAS_ENDS]} if ends else {}
    encoding = TIP if encoding is None else encoding
    return {"kind": kind, "mark": {"type": mark, **look}, **transform, "encoding": encoding}


def line(kind: str = "mean", width: float = 2, encoding: Layer | None = None, **look: Any) -> Layer:
    return layer(kind, "line", encoding or {}, strokeWidth=width, **look)


def markers(kind: str = "mean", size: float = 45, color: str = "", **look: Any) -> Layer:
    encoding = TIP | ({"color": {"value": color}} if color else {})
    return layer(kind, "point", encoding, filled=True, size=size, opacity=1, **look)


def intervals(series: int, kind: str = "mean", **more: Any) -> Layer:
    """95 % intervals along `series` lines: bands, or rules for more than MOST_BANDS lines, whose
    bands would overlap."""
    mark, look = "area", {"opacity": 0.18}
    if series > MOST_BANDS:
        mark, look = "rule", {"strokeWidth": 1.2, "opacity": 0.7}
    return layer(kind, mark, between("y"), ends=True, **look, tooltip=None, **more)


def between(along: str) -> Layer:
    """The encoding of the ends of intervals along an axis."""
    return {along: {"field": "low", "type": "quantitative"}, f"{along}2": {"field": "high"}}


DOTS = layer("repeat", "point", filled=True, size=14, opacity=0.55, shape="circle")
"""Points of the single repeats."""
LEVEL = layer(
    "level",
    "line",
    {"color": {"value": NEUTRAL}, "strokeDash": {"value": [2, 3]}, "detail": {"field": "series"}},
    strokeWidth=1.5,
    strokeDash=[2, 3],
    color=NEUTRAL,
)
"""Reference lines, such as the ideal speed-up."""
PUBLISHED = layer(
    "published",
    "point",
    TIP | {"color": {"value": "#B0528F"}},
    filled=False,
    size=110,
    strokeWidth=2,
    shape="diamond",
)
"""Points of a paper's values."""
WORDS = layer(
    "text",
    "text",
    {"text": {"field": "text", "type": "nominal"}} | INK,
    align="left",
    dx=6,
    limit=80,
)
"""Text beside the points."""


def bars(lying: bool = True, offset: bool = True, stacked: bool = False) -> list[Layer]:
    """Bars with intervals and repeats. The label of a bar is its `x`, or its `y` if bars are
    horizontal (`lying`)."""
    across, along = ("y", "x") if lying else ("x", "y")
    if stacked:
        return [layer("bar", "bar", TIP | {"order": {"field": "order", "type": "quantitative"}})]
    place: Layer = {f"{across}Offset": {"field": "series", "sort": None}} if offset else {}
    place |= TIP
    ends = place | between(along) | INK
    return [
        layer("bar", "bar", place),
        layer("bar", "rule", ends, ends=True, strokeWidth=1.5),
        {**DOTS, "encoding": place | INK},
    ]


# Axes.


def quantity(title: str, zero: bool = True, format: str = "", **more: Any) -> Layer:
    """An axis of numbers; `format` is a number format of d3, such as `~%`."""
    axis = {"format": format} if format else {}
    return {
        "type": "quantitative",
        "title": title,
        "scale": {"zero": zero, "nice": True, **more.pop("scale", {})},
        "axis": axis | more,
    }


def crowded(values: Sequence[int]) -> bool:
    """Whether some of these ascending numbers would be too close together on a linear axis."""
    return bool(values) and values[-1] >= 8 * values[0]


def counts(title: str, values: Sequence[int], log: bool | None = None) -> Layer:
    """An axis of a few whole numbers, logarithmic if small ones would be too close together."""
    log = crowded(values) if log is None else log
    scale: Layer = {"type": "log", "base": 2} if log else {"zero": False, "padding": 12}
    scale["nice"] = False
    axis = {"values": list(values), "format": ",d", "grid": False, "labelOverlap": True}
    return {"type": "quantitative", "title": title, "scale": scale, "axis": axis}


MOST_SORTED = 1000
"""Largest number of names on an axis in a given order. With 1,500, vl-convert 1.9.0 fails."""


def labels(names: Collection[str], title: str | None = None, lying: bool = True) -> Layer:
    """An axis of names in the given order; more than MOST_SORTED names keep the data's order."""
    axis: dict[str, Any] = {
        "grid": False,
        "ticks": False,
        "domain": not lying,
        "labelOverlap": False,
    }
    if lying:
        axis.update({"labelLimit": {"expr": "labelWidth"}, "labelPadding": 6})
    else:
        axis["labelAngle"] = -25 if any(len(name) > 8 for name in names) else 0
    order = list(names) if len(names) <= MOST_SORTED else None
    return {"type": "nominal", "title": title, "sort": order, "axis": axis}


CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif",
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.13,
        "domainOpacity": 0.4,
        "tickOpacity": 0.4,
        "labelFontSize": 11,
        "labelOverlap": True,
        "labelSeparation": 5,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "orient": "bottom",
        "labelColor": "currentColor",
        "labelLimit": LONGEST_NAME_PX,
        "labelFontSize": 11,
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
    },
    "header": {
        "labelColor": "currentColor",
        "labelFontSize": 11.5,
        "labelAnchor": "start",
        "labelLimit": 300,
    },
    "text": {"fontSize": 10.5},
}


TALLEST_PX = 1600
"""Largest height of a PNG in pixels. Below it, PNGs have twice the page's resolution."""


def pictures(plot: Plot) -> dict[str, bytes]:
    """Suffix -> picture of the plot, without its title, because a paper has a caption instead."""
    import vl_convert

    columns = min(plot.columns, len(plot.panels))
    spec = plot.spec(PAPER_PX if columns == 1 else 330 * columns)
    spec["config"] = CONFIG | {"font": "Liberation Sans, Arial, Helvetica, sans-serif"}
    svg = vl_convert.vegalite_to_svg(spec).replace("currentColor", "#000")
    height = float(svg.partition(' height="')[2].partition('"')[0])
    return {
        ".svg": svg.encode(),
        ".pdf": vl_convert.svg_to_pdf(svg),
        ".png": vl_convert.svg_to_png(svg, scale=min(2.0, TALLEST_PX / height)),
    }
