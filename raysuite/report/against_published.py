"""A study beside a paper's published values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from raysuite.records import Ratio, Row, Stat, ratio_of_means
from raysuite.records.names import work_key
from raysuite.report.against import (
    QUANTITIES,
    Comparison,
    Line,
    Measured,
    Unmatched,
    row_figures,
)
from raysuite.report.published import Paper, Published
from raysuite.report.published.recompute import recomputed, stated

EPOCHS = 90
"""The papers' trainings on ImageNet."""
SAME_DATA = ("training_s", "accuracy")
"""Quantities that say nothing beside those of another data set."""


def against_published(rows: Sequence[Row], paper: Paper) -> Comparison:
    """Rows beside the values of a paper that are of the same framework, loader, model and workers.

    Where a paper names no framework or loader, each of ours stands beside its value.
    """
    lines: list[Line] = []
    alone: dict[tuple[str, str], list[str]] = {}
    met: set[str] = set()
    for value in paper.values:
        matches, reason = _matches(rows, value)
        found = [line for row in matches if (line := _line(row, rows, value)) is not None]
        lines += found
        met |= {line.ours_name for line in found}
        if not found:
            where = f"{place(value)}, {value.source}"
            titles = alone.setdefault((where, reason or "this study has no such figure"), [])
            titles.append(QUANTITIES[value.quantity].title)
    unmatched = [
        Unmatched("theirs", f"{', '.join(titles)}: {where}", reason)
        for (where, reason), titles in alone.items()
    ]
    unmatched += [
        Unmatched("ours", row.name, "the paper states nothing of it")
        for row in rows
        if row.name not in met
    ]
    return Comparison(
        asked=f"published:{paper.name}",
        title=paper.title,
        lines=tuple(lines),
        unmatched=tuple(unmatched),
        recomputed=tuple(recomputed(paper)),
        remarks=paper.remarks,
        published=True,
    )


def place(value: Published) -> str:
    """What a published value is of."""
    workers = "" if value.workers is None else f"{value.workers} workers"
    batch = "" if value.global_batch is None else f"global batch {value.global_batch}"
    parts = (value.framework, value.loader, value.model, value.schedule, batch, workers)
    return " · ".join(filter(None, parts)) or "any"


def _matches(rows: Sequence[Row], value: Published) -> tuple[list[Row], str]:
    """The rows that a value may stand beside; or none, and why."""
    known = list(rows)
    wanted: list[tuple[str, object]] = [
        ("framework", value.framework),
        ("model", value.model),
        ("loader", value.loader),
        ("schedule", value.schedule),
        ("global_batch", value.global_batch),
        ("workers", value.workers),
        ("data", value.data if value.quantity in SAME_DATA else ""),
    ]
    for key, want in wanted:
        if want in ("", None):
            continue
        known = [row for row in known if want in _facts(row)[key]]
        if not known:
            return [], f"no run with {key.replace('_', ' ')} {want}"
    return known, ""


def _facts(row: Row) -> dict[str, tuple[object, ...]]:
    spec = row.runs[0].plan["spec"]
    loader = spec["loader"]["name"]
    loaders = (loader, f"dali-{spec['loader']['device']}") if loader == "dali" else (loader,)
    return {
        "framework": (spec["strategy"]["name"], spec["strategy"].get("schedule")),
        "model": (spec["model"]["name"],),
        "loader": loaders,
        "schedule": (spec["schedule"]["name"],),
        "global_batch": (row.global_batch,),
        "workers": (row.workers,),
        "data": (spec["data"]["name"],),
    }


def _line(row: Row, rows: Sequence[Row], value: Published) -> Line | None:
    ours = _figure(row, rows, value)
    if ours is None:
        return None
    line = Line(
        quantity=value.quantity,
        ours_name=row.name,
        ours=Measured.of(ours, EPOCHS if value.quantity == "training_s" else 1.0),
        theirs_name=place(value),
        theirs=Measured(value.value, high=value.high),
        bound=value.bound,
        source=value.source,
        notes=tuple(_notes(row, value)),
    )
    if value.high is not None or value.bound in ("over", "under"):
        return replace(line, notes=(_held(line), *line.notes))
    ratio = line.ours.over(value.value)
    if ratio is None or ratio.low is None:
        return replace(line, ratio=ratio)
    return replace(line, ratio=ratio, basis="ours")


def _figure(row: Row, rows: Sequence[Row], value: Published) -> Stat | Ratio | None:
    if value.quantity in ("speed_up", "efficiency"):
        ratio = _over_workers(row, rows, value.base_workers)
        if ratio is None or value.quantity == "speed_up" or value.base_workers is None:
            return ratio
        return ratio.scaled(value.base_workers / row.workers)
    if value.quantity == "throughput_over_native":
        return _over_native(row, rows)
    name = {"training_s": "epoch_s"}.get(value.quantity, value.quantity)
    return row_figures(row).get(name)


def _over_workers(row: Row, rows: Sequence[Row], workers: int | None) -> Ratio | None:
    """Speed-up over the same variant on so many workers, whatever baseline the report has."""
    key = row.series_key
    base = (each for each in rows if each.workers == workers and each.series_key == key)
    return _ratio(row, next(base, None))


def _over_native(row: Row, rows: Sequence[Row]) -> Ratio | None:
    """Over the row that differs in its loader alone, and in the form of its images at most."""
    if row.runs[0].plan["spec"]["loader"]["name"] == "native":
        return None
    native = [
        each
        for each in rows
        if each.runs[0].plan["spec"]["loader"]["name"] == "native"
        and _but_loader(each) == _but_loader(row)
    ]
    return _ratio(row, _of_the_same_place(row, native))


def _of_the_same_place(row: Row, native: Sequence[Row]) -> Row | None:
    """The one that reads the same files, or else the same set in another form beside them.

    Forms with a `path` each have nothing else in common: there, the only one there is.
    """

    def data(each: Row, *left_out: str) -> dict[str, object]:
        block = each.runs[0].plan["spec"]["data"]
        return {key: value for key, value in block.items() if key not in left_out}

    def equal_but_for(*keys: str) -> list[Row]:
        return [each for each in native if data(each, *keys) == data(row, *keys)]

    beside = equal_but_for() or equal_but_for("format")
    if beside:
        return beside[0]
    own_paths = [
        each
        for each in equal_but_for("format", "path")
        if data(each)["format"] != data(row)["format"] and data(each)["path"] and data(row)["path"]
    ]
    return own_paths[0] if len(own_paths) == 1 else None


def _but_loader(row: Row) -> tuple[object, ...]:
    """What a row is, without its loader and the form in which that reads the images."""
    plan = row.runs[0].plan
    spec = {
        key: value for key, value in plan["spec"].items() if key not in ("seed", "loader", "data")
    }
    return spec, work_key(plan), row.device, row.global_batch


def _ratio(row: Row, base: Row | None) -> Ratio | None:
    if base is None or base is row or row.throughput is None or base.throughput is None:
        return None
    return ratio_of_means(row.throughput, base.throughput)


def _notes(row: Row, value: Published) -> Iterator[str]:
    data = row.runs[0].plan["spec"]["data"]["name"]
    if value.data and data != value.data:
        yield f"ours on {data}, theirs on {value.data}"
    if row.device != "gpu":
        yield f"ours on {row.device}, theirs on GPUs"
    if value.quantity == "training_s":
        yield f"ours is a projection: {EPOCHS} x the mean epoch, without validation"
    if value.note:
        yield value.note


def _held(line: Line) -> str:
    """Whether a bound or a range holds for ours, as far as our interval tells."""
    ours = line.ours
    low = ours.value if ours.low is None else ours.low
    high = ours.value if ours.high is None else ours.high
    said = stated(line.quantity, line.theirs.value, line.theirs.high, line.bound or "within")
    spread = " (n = 1)" if ours.low is None else ""
    if _holds(line, low) and _holds(line, high):
        return f"ours is {said}{spread}"
    if line.theirs.high is None:
        if _holds(line, low) or _holds(line, high):
            return f"whether ours is {said} lies within our interval"
    elif low <= line.theirs.high and high >= line.theirs.value:
        return f"whether ours is {said} cannot be told: our interval reaches beyond that"
    return f"ours is not {said}{spread}"


def _holds(line: Line, value: float) -> bool:
    if line.theirs.high is not None:
        return line.theirs.value <= value <= line.theirs.high
    return value > line.theirs.value if line.bound == "over" else value < line.theirs.value
