"""Several panels in one plot, with one legend and axes that compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raysuite.records import Row
from raysuite.report.facets import written
from raysuite.report.plot import Plot, Trace, safe

PANEL_HEIGHT = 300
"""Pixels of one row of panels."""
ACCURACY = {
    "title": {"text": "validation accuracy"},
    "tickformat": "~%",
    "autorangeoptions": {"clipmin": 0.0, "clipmax": 1.02},
}
"""Axis of accuracies: an interval of few repeats may reach beyond what an accuracy can be."""


def panelled(
    *,
    name: str,
    title: str,
    note: str,
    description: str,
    panels: Mapping[str, Sequence[Trace]],
    x: dict[str, Any],
    y: dict[str, Any],
    columns: int = 3,
    height: int = PANEL_HEIGHT,
    same_y: bool = True,
    extra: dict[str, Any] | None = None,
) -> Plot:
    """One panel for each title in `panels`, at most `columns` beside each other.

    A single panel is a plain plot whose panel title joins the plot's. Traces of one name share an
    entry of the legend. `x` and `y` are plotly's axes, the same for every panel, or `y` is
    `same_y` = False scaled for each.
    """
    titles = list(panels)
    if len(titles) == 1:
        whole = f"{title}: {titles[0]}" if titles[0] else title
        layout = {"xaxis": x, "yaxis": y, "height": height + 90, **(extra or {})}
        return Plot(name, whole, note, description, list(panels[titles[0]]), layout)
    columns = min(columns, len(titles))
    lines = math.ceil(len(titles) / columns)
    traces: list[Trace] = []
    layout = {
        "grid": {"rows": lines, "columns": columns, "pattern": "independent", "ygap": 0.3},
        "height": lines * height + 60,
        "meta": {"panels": [safe(each) for each in titles], "panel_height": height},
        "annotations": [],
        **(extra or {}),
    }
    named: set[str] = set()
    for place, (heading, members) in enumerate(panels.items()):
        number = str(place + 1) if place else ""
        layout[f"xaxis{number}"] = dict(x)
        layout[f"yaxis{number}"] = {**y, **({"matches": "y"} if place and same_y else {})}
        if place % columns:
            layout[f"yaxis{number}"]["title"] = {"text": ""}
            if y.get("type") == "category":  # the same names stand in the first column
                layout[f"yaxis{number}"]["showticklabels"] = False
        layout["annotations"].append(panel_title(safe(heading), number))
        for trace in members:
            traces.append(
                {
                    **trace,
                    "xaxis": f"x{number}",
                    "yaxis": f"y{number}",
                    "legendgroup": trace["name"],
                    "showlegend": trace["name"] not in named,
                    "meta": {**trace.get("meta", {}), "panel": place},
                }
            )
            named.add(trace["name"])
    return Plot(name, title, note, description, traces, layout)


def columns_of(rows: Sequence[Row], across: Sequence[str]) -> int:
    """Panels beside each other: a column for each value of the facet that varies fastest."""
    values = len({written(row, across[-1:]) for row in rows})
    if len(across) > 1 and 2 <= values <= 4:
        return values
    return 2 if values == 4 else 3


def headings(rows: Sequence[Row], across: Sequence[str]) -> list[str]:
    """Panel titles, so ordered that the last facet varies fastest."""
    places = {name: list(dict.fromkeys(written(row, [name]) for row in rows)) for name in across}
    ordered = sorted(
        rows, key=lambda row: [places[name].index(written(row, [name])) for name in across]
    )
    return list(dict.fromkeys(written(row, across) for row in ordered))


def panel_title(heading: str, number: str) -> dict[str, Any]:
    """The title above the panel of axes x`number` and y`number`."""
    return {
        "text": heading,
        "xref": f"x{number} domain",
        "yref": f"y{number} domain",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }
