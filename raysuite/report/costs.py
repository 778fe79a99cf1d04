"""What variants cost: operations, bytes, energy, and ninety epochs, as a table and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raysuite.records import Row
from raysuite.records.metrics import METRICS
from raysuite.records.statistics import LEVEL
from raysuite.report import text
from raysuite.report.sheet import Sheet

COLUMNS = tuple(metric for metric in METRICS if metric.table == "costs")
_BYTES = "Bytes a step"


def costs_sheet(rows: Sequence[Row]) -> Sheet | None:
    """The table of costs: columns for which a row has a figure; None where no row has any."""
    shown = [column for column in COLUMNS if any(row.figures[column.name] for row in rows)]
    sent = any(row.traffic is not None for row in rows)
    if not shown:
        return None
    header = ["Variant", *(column.title for column in shown), *([_BYTES] if sent else [])]
    return Sheet(
        name="costs",
        title="Costs",
        header=tuple(header),
        cells=tuple(
            (
                row.name,
                *(
                    text.stat(row.figures[column.name], text.WRITERS[column.unit], single="")
                    for column in shown
                ),
                *([_bytes(row)] if sent else []),
            )
            for row in rows
        ),
        numbers=frozenset(header[1:]),
        notes=tuple(filter(None, [*(column.note for column in shown), *_notes(rows, sent)])),
    )


def _notes(rows: Sequence[Row], sent: bool) -> Iterator[str]:
    counted = [
        run.costs.counted
        for row in rows
        for run in row.counted
        if run.costs is not None and run.costs.counted is not None
    ]
    peaks = {
        (each.device, each.peak_format, each.peak_flops, each.peak_source)
        for each in counted
        if each.peak_flops is not None
    }
    for device, number_format, flops, source in sorted(peaks):
        rate = text.scaled("FLOP/s")(flops)
        yield f"MFU is against {rate} of each {device} in {number_format} ({source})."
    if counted and not all(each.peak_flops is not None for each in counted):
        yield "MFU is withheld where the device's peak rate is not known, as on CPUs."
    for message in sorted({each.message for each in counted if each.message}):
        yield f"A model could not be counted: {message}"
    if sent:
        yield (
            f"{_BYTES}: buffers that a worker's collectives combine in an optimiser step, computed "
            "from what each framework does, not measured."
        )
    if any(stat.low is not None for row in rows for c in COLUMNS if (stat := row.figures[c.name])):
        yield f"Intervals are of {100 * LEVEL:.0f} %, over repeats (docs/explanation/method.md)."


def _bytes(row: Row) -> str:
    return text.NONE if row.traffic is None else text.size(row.traffic.total)
