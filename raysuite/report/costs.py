"""What variants cost: operations, bytes, energy, and ninety epochs, as a table and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from raysuite.records import Row, RunFigures, Stat
from raysuite.records.costs import PROJECTED_EPOCHS
from raysuite.records.statistics import LEVEL
from raysuite.report import text
from raysuite.report.sheet import Sheet

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class _Column(NamedTuple):
    title: str
    figure: Callable[[Row], Stat | None]
    write: text.Writer
    note: str


def _of(name: str) -> Callable[[Row], Stat | None]:
    def figure(row: Row) -> Stat | None:
        found: Stat | None = getattr(row.costs, name, None)
        return found

    return figure


_ENERGY = (
    "over the training time of epochs, of all processes that share it: what several workers share "
    "counts once."
)
COLUMNS = (
    _Column(
        f"{PROJECTED_EPOCHS} epochs",
        _of("projected_seconds"),
        text.seconds,
        f"{PROJECTED_EPOCHS} epochs: a projection, {PROJECTED_EPOCHS} times the mean training time "
        "of an epoch, without validation.",
    ),
    _Column("Top-5", lambda row: row.final_top5, text.percent, ""),
    _Column(
        "FLOP/s",
        _of("flops"),
        lambda value: _scaled(value, "FLOP/s"),
        "FLOP/s over all workers: three forward passes an image, two operations a multiply-add.",
    ),
    _Column("MFU", _of("mfu"), text.percent, ""),
    _Column(
        "Bus bandwidth",
        _of("bus_bandwidth"),
        lambda value: _scaled(value, "B/s"),
        "Bus bandwidth: what each worker sends in the profiled steps by algorithms that are "
        "optimal in bandwidth, over the time in which a collective is under way.",
    ),
    _Column(
        "Device busy",
        _of("device_busy"),
        text.percent,
        "Device busy: part of the training time in which a kernel ran, by NVML.",
    ),
    _Column(
        "Device J/image",
        _of("device_joules"),
        text.number,
        f"Energy of devices, by NVML, {_ENERGY}",
    ),
    _Column(
        "Host J/image",
        _of("host_joules"),
        text.number,
        f"Energy of processors and their memory, by RAPL, {_ENERGY}",
    ),
)
_BYTES = "Bytes a step"


def costs_sheet(rows: Sequence[Row]) -> Sheet | None:
    """The table of costs: columns for which a row has a figure; None where no row has any."""
    shown = [column for column in COLUMNS if any(column.figure(row) for row in rows)]
    sent = any(row.costs and row.costs.traffic is not None for row in rows)
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
                *(text.stat(column.figure(row), column.write, single="") for column in shown),
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
        rate = _scaled(flops, "FLOP/s")
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
    if any(stat.low is not None for row in rows for c in COLUMNS if (stat := c.figure(row))):
        yield f"Intervals are of {100 * LEVEL:.0f} %, over repeats (docs/explanation/method.md)."


def _bytes(row: Row) -> str:
    if row.costs is None or row.costs.traffic is None:
        return text.NONE
    return text.size(row.costs.traffic.total)


def _scaled(value: float, unit: str) -> str:
    """`12.3 GFLOP/s`: decimal prefixes, as vendors and NCCL use them."""
    for size, prefix in _PREFIXES:
        if value >= size:
            return f"{text.number(value / size)} {prefix}{unit}"
    return f"{text.number(value)} {unit}"


Flat = Callable[[Stat | None], dict[str, Any]]


def row_costs_data(row: Row, flat: Flat) -> dict[str, Any]:
    """A row's costs as plain data; `flat` writes a Stat."""
    traffic = row.costs.traffic if row.costs is not None else None
    return {
        f"projected_{PROJECTED_EPOCHS}_epochs_s": flat(_of("projected_seconds")(row)),
        "final_top5": flat(row.final_top5),
        "flop_per_s": flat(_of("flops")(row)),
        "mfu": flat(_of("mfu")(row)),
        "all_reduced_bytes_per_step": traffic and traffic.all_reduced,
        "reduce_scattered_bytes_per_step": traffic and traffic.reduce_scattered,
        "all_gathered_bytes_per_step": traffic and traffic.all_gathered,
        "sent_bytes_per_step": traffic and traffic.sent(row.workers),
        "bus_bandwidth_bytes_per_s": flat(_of("bus_bandwidth")(row)),
        "device_busy": flat(_of("device_busy")(row)),
        "device_joules_per_image": flat(_of("device_joules")(row)),
        "host_joules_per_image": flat(_of("host_joules")(row)),
    }


def run_costs_data(run: RunFigures) -> dict[str, Any]:
    """A run's costs as plain data, with what they were counted from."""
    costs = run.costs
    if costs is None:
        return {"costs": None}
    counted = costs.counted
    return {
        "costs": {
            f"projected_{PROJECTED_EPOCHS}_epochs_s": costs.projected_seconds,
            "flop_per_s": costs.flops,
            "mfu": costs.mfu,
            "bus_bandwidth_bytes_per_s": costs.bus_bandwidth,
            "device_busy": costs.device_busy,
            "device_joules_per_image": costs.device_joules,
            "host_joules_per_image": costs.host_joules,
            "counted": counted
            and counted.model_dump(mode="json", exclude={"run_id", "kind", "time"}),
        }
    }
