"""Two studies side by side: what is compared, line by line, and as tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from raysuite.records import Ratio, Row, Stat
from raysuite.records.metrics import METRICS
from raysuite.report import text

Basis = Literal["both", "ours", "none"]
"""Whose spread the interval of a ratio holds."""


@dataclass(frozen=True)
class Quantity:
    """What is compared: its title, its unit, and how a value is written."""

    title: str
    unit: str
    write: Callable[[float], str]


def _plain(value: float) -> str:
    return f"{value:.2f}"


def _short(value: float) -> str:
    """As the papers write speed-ups: `234`, `10.11`, `4.2`."""
    return _plain(value).rstrip("0").rstrip(".")


def _count(value: float) -> str:
    return f"{value:,.0f}"


QUANTITIES = {
    **{
        metric.compared: Quantity(
            metric.title if metric.name != "throughput" else "Throughput",
            metric.unit,
            text.WRITERS[metric.unit],
        )
        for metric in METRICS
        if metric.compared
    },
    "throughput_over_native": Quantity("Throughput over native", "", _plain),
    "speed_up": Quantity("Speed-up", "", _short),
    "efficiency": Quantity("Efficiency", "", _plain),
    "training_s": Quantity("Training, 90 epochs", "s", text.seconds),
    "data_loading_s": Quantity("Data loading", "s", text.seconds),
    "best_accuracy": Quantity("Best accuracy", "share", text.percent),
    "worker_seconds": Quantity("Worker-seconds", "s", text.number),
    "epochs_trained": Quantity("Epochs trained", "", _count),
    "trials": Quantity("Trials", "", _count),
    "trials_stopped_early": Quantity("Trials stopped early", "", _count),
}


@dataclass(frozen=True)
class Measured:
    """A value with its 95 % interval; None and None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, figure: Stat | Ratio, scale: float = 1.0) -> Measured:
        """A mean or a ratio, times an exact number."""
        if isinstance(figure, Ratio):
            figure = figure.scaled(scale)
            return cls(figure.value, figure.low, figure.high)
        low, high = figure.low, figure.high
        if low is None or high is None:
            return cls(figure.mean * scale)
        return cls(figure.mean * scale, low * scale, high * scale)

    def over(self, exact: float) -> Ratio | None:
        """The ratio to a number without spread; None where it is not defined."""
        if exact <= 0:
            return None
        low = None if self.low is None else self.low / exact
        high = None if self.high is None else self.high / exact
        return Ratio(self.value / exact, low, high)


@dataclass(frozen=True)
class Line:
    """One quantity of ours beside theirs."""

    quantity: str
    """A key of QUANTITIES."""
    ours_name: str
    ours: Measured
    theirs_name: str
    theirs: Measured
    bound: str = ""
    """`over`, `under`, `about` or `up to`, where a paper states no more than that."""
    ratio: Ratio | None = None
    """Ours / theirs."""
    basis: Basis = "none"
    source: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unmatched:
    """What stands on one side alone."""

    side: Literal["ours", "theirs"]
    name: str
    reason: str


@dataclass(frozen=True)
class Recomputed:
    """What a paper states, beside what follows from its other statements."""

    name: str
    stated: str
    recomputed: str
    how: str


@dataclass(frozen=True)
class Comparison:
    """A study against another one, or against a paper."""

    asked: str
    """What `--against` was given."""
    title: str
    lines: tuple[Line, ...]
    unmatched: tuple[Unmatched, ...]
    recomputed: tuple[Recomputed, ...] = ()
    remarks: tuple[str, ...] = ()
    published: bool = False

    def data(self) -> dict[str, Any]:
        """Everything as plain data: the content of against.json."""
        return {
            "format": 1,
            "against": self.asked,
            "title": self.title,
            "lines": [line_data(line) for line in self.lines],
            "unmatched": [asdict(each) for each in self.unmatched],
            "recomputed": [asdict(each) for each in self.recomputed],
            "remarks": list(self.remarks),
        }

    @property
    def note(self) -> str:
        """What was found, in a sentence."""
        figures = text.count(len(self.lines), "figure")
        rest = len(self.unmatched)
        return f"{figures} side by side; {rest} without a counterpart."


def line_data(line: Line) -> dict[str, Any]:
    """A line as plain data."""
    ratio = line.ratio
    return {
        "quantity": line.quantity,
        "unit": QUANTITIES[line.quantity].unit,
        "ours": line.ours_name,
        "ours_value": line.ours.value,
        "ours_low": line.ours.low,
        "ours_high": line.ours.high,
        "theirs": line.theirs_name,
        "theirs_bound": line.bound,
        "theirs_value": line.theirs.value,
        "theirs_low": line.theirs.low,
        "theirs_high": line.theirs.high,
        "ratio": ratio and ratio.value,
        "ratio_low": ratio and ratio.low,
        "ratio_high": ratio and ratio.high,
        "interval_of": line.basis,
        "source": line.source,
        "notes": "; ".join(line.notes),
    }


def row_figures(row: Row) -> dict[str, Stat | Ratio | None]:
    """What is compared of a row; a speed-up only where it is not one by definition."""
    return {
        "speed_up": None if row.is_baseline else row.speed_up,
        "efficiency": None if row.is_baseline else row.efficiency,
        **{each.compared: row.figures[each.name] for each in METRICS if each.compared},
    }
