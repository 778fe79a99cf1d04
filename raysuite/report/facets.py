"""Facets: properties that distinguish rows, such as the strategy; and the styles of series."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from raysuite.records import Row
from raysuite.records.names import block_name, workers_name
from raysuite.report.plot import COLORS, DASHES, SYMBOLS, Style

OWN = ("strategy", "loader", "model", "data", "schedule", "batch", "workers", "device")
"""The facets that every row has, in the order in which they are written."""

WORK = ("model", "data")
"""Facets in which rows must be equal for their figures to be comparable."""

_KEYS = {
    *(key for name in OWN[:5] for key in (name, f"{name}.name")),
    *("training.global_batch", "training.batch_per_worker"),
    *("resources.workers", "resources.device"),
}
"""Keys of a matrix that are shown by one of the facets in OWN."""


def facets(row: Row) -> dict[str, str]:
    """Facet -> short text for a row. The facets are OWN, then the other keys of the matrix, then
    the other keys in which the specs of a folder's rows differ."""
    plan = row.runs[0].plan
    spec, label = plan["spec"], plan["label"]
    training = spec["training"]
    share = training.get("batch_per_worker")
    schedule = spec.get("schedule", {}).get("name", "")
    own = {
        "strategy": row.strategy,
        "loader": row.loader,
        "model": block_name(label.get("model", spec["model"]["name"])),
        "data": block_name(label.get("data", spec["data"]["name"])),
        "schedule": block_name(label.get("schedule", schedule)),
        "batch": f"{share} a worker" if share else f"batch {training.get('global_batch')}",
        "workers": workers_name(row.workers),
        "device": row.device,
    }
    others = {
        key: f"{key.rpartition('.')[2]}={block_name(value)}"
        for key, value in (label | dict(row.unnamed)).items()
        if key not in _KEYS and key != "seed"
    }
    return own | others


def telling(
    rows: Sequence[Row],
    given: Callable[[Row], Hashable] = lambda row: None,
    always: Sequence[str] = (),
) -> list[str]:
    """Choose a few facets that, together with `given`, distinguish all rows.

    A facet is left out if the facets before it already determine its value, such as the precision
    if each strategy runs with only one precision. A facet in `always` is included if rows differ in
    it, even if `given` determines its value.
    """
    table = [(given(row), facets(row)) for row in rows]
    names = list(dict.fromkeys(name for _, each in table for name in each))
    chosen = [name for name in always if len({each.get(name) for _, each in table}) > 1]
    groups = len({(key, _texts(each, chosen)) for key, each in table})
    for name in names:
        split = len({(key, _texts(each, [*chosen, name])) for key, each in table})
        if split > groups:
            chosen.append(name)
            groups = split
    return sorted(chosen, key=names.index)


def written(row: Row, names: Sequence[str]) -> str:
    """A row's facets as text: `ddp · native`."""
    return " · ".join(filter(None, _texts(facets(row), names)))


def shared(rows: Sequence[Row], names: Sequence[str] = ("model", "data")) -> str:
    """The values of the facets `names` that are equal in all rows: `resnet20 · digits`."""
    table = [facets(row) for row in rows]
    same = [name for name in names if len({each.get(name, "") for each in table}) == 1]
    return written(rows[0], same) if rows else ""


def _texts(each: dict[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(each.get(name, "") for name in names)


class Styles:
    """The styles of series in all plots of a report: the colour depends on the first facet of the
    legend, the dash on the second facet, and the symbol on all facets."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._values: dict[str, list[str]] = {}
        for row in rows:
            for name, value in facets(row).items():
                known = self._values.setdefault(name, [])
                if value not in known:
                    known.append(value)

    def of(self, row: Row, names: Sequence[str]) -> Style:
        """The style of a row's series, by the facets `names`; by strategy if `names` is empty."""
        places = [self._place(row, name) for name in names or ("strategy",)]
        return Style(
            COLORS[places[0] % len(COLORS)],
            DASHES[places[1] % len(DASHES)] if len(places) > 1 else DASHES[0],
            SYMBOLS[sum(places) % len(SYMBOLS)],
        )

    def _place(self, row: Row, name: str) -> int:
        value = facets(row).get(name)
        return self._values[name].index(value) if value is not None else 0
