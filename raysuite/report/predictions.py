"""Predictions next to measurements: the only table and plot with predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raysuite.records import RunFigures
from raysuite.records.metrics import Unit
from raysuite.records.predicted import Interval, RunPredicted
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.builders import MOST_LINES
from raysuite.report.plot import Plot, Style
from raysuite.report.summary import short_names
from raysuite.report.tables import Sheet, sheet_from

Predictions = Mapping[str, RunPredicted]
"""Id of a run -> its prediction."""

PREDICTED = "predicted, not measured"


def predictions_sheet(runs: Sequence[RunFigures], predicted: Predictions) -> Sheet | None:
    """A table with one line per predicted run; None without predictions."""
    pairs = [(run, predicted[run.run_id]) for run in runs if run.run_id in predicted]
    if not pairs:
        return None

    def suited(unit: Unit, name: str) -> text.Writer:
        figures = (getattr(each, name) for _, each in pairs)
        return text.writer(unit, [figure.value for figure in figures if figure])

    epoch, whole = suited("s", "epoch_seconds"), suited("s", "run_seconds")
    memory = suited("bytes", "memory_bytes")
    rate = f"{pairs[0][0].task.unit.capitalize()}/s"

    def cells(run: RunFigures, each: RunPredicted) -> dict[str, str]:
        most = max(each.shares.items(), key=lambda item: item[1], default=None)
        remarks = [each.message, *(f"out of range: {name}" for name in each.outside)]
        measured = run.peak_device_bytes or run.peak_process_bytes
        return {
            "Run": run.name,
            f"{rate} predicted": interval(each.throughput),
            f"{rate} measured": text.optional(run.throughput),
            "Error": _error(each.throughput, run.throughput),
            "Epoch": interval(each.epoch_seconds, epoch),
            "Run time": interval(each.run_seconds, whole),
            "Speed-up": interval(each.speed_up),
            "Efficiency": interval(each.efficiency),
            "Memory predicted": interval(each.memory_bytes, memory),
            "Memory measured": text.optional(measured, memory),
            "Most time in": f"{most[0]}, {most[1]:.0%}" if most else text.NONE,
            "Remarks": "; ".join(filter(None, remarks)),
        }

    lines = [cells(run, each) for run, each in pairs]
    return sheet_from(
        "predictions",
        "Predictions of a calibrated model, next to measurements",
        lines,
        numbers=list(lines[0])[1:-2],
        notes=(
            f"Predictions with their {pairs[0][1].level:.0%} prediction intervals; they are not "
            "measured, and are in no other table.",
            f"Calibration: {', '.join(sorted({each.calibration for _, each in pairs}))}",
            *validations([each for _, each in pairs]),
        ),
    )


def validations(predicted: Iterable[RunPredicted]) -> list[str]:
    """Sentences on measured errors of predictions, one for each kind of prediction."""
    found = dict.fromkeys(each.validated for each in predicted if each.validated)
    return [f"{said[0].upper()}{said[1:]}." for said in found]


def interval(figure: Interval | None, write: text.Writer = text.number) -> str:
    """An interval as text: `12.3 [11.8, 12.9]`."""
    if figure is None:
        return text.NONE
    value, low, high = (write(each) for each in figure)
    return f"{value} [{low}, {high}]"


def _error(predicted: Interval | None, measured: float | None) -> str:
    if predicted is None or measured is None:
        return text.NONE
    slack = 1e-9 * measured  # rounding, which matters if the interval has no width
    within = predicted.low - slack <= measured <= predicted.high + slack
    outside = "" if within else " (outside)"
    return f"{predicted.value / measured - 1:+.1%}{outside}"


def predictions_plot(runs: Sequence[RunFigures], predicted: Predictions) -> Plot | None:
    """Predicted throughputs with intervals, and measured throughputs; None without predictions."""
    shown = [
        (run, figure)
        for run in runs
        if run.run_id in predicted and (figure := predicted[run.run_id].throughput) is not None
    ]
    if not shown:
        return None
    count, shown = len(shown), shown[:MOST_LINES]
    short = short_names([run.name for run, _ in shown])
    predictions, measured = [], []
    for run, figure in shown:
        y = short[run.name]
        tip = f"{run.name}\npredicted: {interval(figure)} {run.task.unit}/s"
        ends = {"low": figure.low, "high": figure.high}
        predictions.append({"x": figure.value, "y": y, **ends, "tip": tip})
        if run.throughput is not None:
            tip = f"{run.name}\nmeasured: {text.number(run.throughput)} {run.task.unit}/s"
            measured.append({"x": run.throughput, "y": y, "tip": tip})
    traces = [p.trace("mean", predictions, series=PREDICTED)]
    if measured:
        traces.append(p.trace("mean", measured, series="measured"))
    return Plot(
        name="predictions",
        title="Throughput predicted and measured",
        note="Lines are prediction intervals, computed by a model."
        + (f" The first {MOST_LINES} of {count} runs are drawn." if count > MOST_LINES else ""),
        description=f"{count} runs with a predicted throughput.",
        traces=traces,
        layers=[p.layer("mean", "rule", p.between("x"), ends=True), p.markers()],
        x=p.quantity(f"{shown[0][0].task.unit} per second"),
        y=p.labels([short[run.name] for run, _ in shown]),
        styles={PREDICTED: Style(p.NEUTRAL, symbol="square"), "measured": Style(p.COLORS[0])},
        height=22,
        bars_per_label=1,
    )
