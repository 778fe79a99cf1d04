"""Where the time of profiled steps went: stacked bars over workers (Aach et al. 2023, Table 2)."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records import Row, Stat
from raysuite.report import text
from raysuite.report.facets import WORK, shared, telling, written
from raysuite.report.figures.panels import columns_of, headings, panelled
from raysuite.report.figures.points import details, middle
from raysuite.report.plot import NEUTRAL, Plot, Trace, safe

PARTS = (
    ("computation", "computation", "#0072B2"),
    ("communication_exposed", "exposed communication", "#D55E00"),
    ("data_exposed", "exposed loading", "#009E73"),
    ("other", "other", NEUTRAL),
)


def shares(rows: Sequence[Row]) -> Plot | None:
    """Shares of computation, communication and loading; None where no run was profiled."""
    shown = [row for row in rows if row.shares]
    if not shown:
        return None
    names = telling(shown, lambda row: row.workers, WORK)
    groups: dict[str, list[Row]] = {}
    for row in sorted(shown, key=lambda row: row.workers):
        groups.setdefault(written(row, names), []).append(row)
    panels = {heading: _stack(groups[heading]) for heading in headings(shown, names)}
    said = shared(shown, ("strategy", "loader", "model", "data"))
    return panelled(
        name="shares",
        title=f"Time shares – {said}" if said else "Time shares",
        note="Of the profiled steps, mean over workers and repeats. Exposed is what no computation "
        "hides; communication in all stands in the hover.",
        description="Stacked bars of computation, exposed communication, exposed loading and the "
        "rest, which add up to 100 %.",
        panels=panels,
        columns=columns_of(shown, names),
        x={"type": "category", "title": {"text": "workers"}},
        y={"title": {"text": "share of the time"}, "tickformat": ".0%", "range": [0, 1]},
        height=260,
        extra={"barmode": "stack", "bargap": 0.35},
    )


def _stack(rows: Sequence[Row]) -> list[Trace]:
    traces = []
    for part, name, color in PARTS:

        def figure(row: Row, part: str = part) -> Stat | None:
            return getattr(row.shares, part) if row.shares else None

        held = details(rows, figure, text.percent)
        for row, hover in zip(rows, held["customdata"], strict=True):
            whole = row.shares.communication if row.shares else None
            hidden = f" (in all {text.stat(whole, text.percent)})" if "comm" in part else ""
            hover[1] = f"{safe(name)}: {hover[1]}{hidden}"
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": [str(row.workers) for row in rows],
                "y": [middle(figure(row)) for row in rows],
                "marker": {"color": color},
                **held,
            }
        )
    return traces
