"""Predictions for a run. They are not written into journals, which hold only measurements."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from raysuite.records.base import RecordBase


class Interval(NamedTuple):
    """A prediction, and the ends of its prediction interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """The interval with all values multiplied by `factor`, for another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def inverse(self, numerator: float) -> Interval:
        """The interval of `numerator` / this figure."""
        return Interval(numerator / self.value, numerator / self.high, numerator / self.low)


class RunPredicted(RecordBase):
    """A run's figures as predicted by a calibrated model."""

    kind: Literal["run_predicted"] = "run_predicted"
    calibration: str
    """File name of the calibration."""
    level: float = 0.9
    """Level of each interval: the probability that a measured run lies within it, if the model
    holds."""
    throughput: Interval | None = None
    """Images, samples or tokens per second over all workers; None if this cannot be predicted."""
    epoch_seconds: Interval | None = None
    run_seconds: Interval | None = None
    """Wall time of the run, including its start-up and the validations."""
    joules: Interval | None = None
    """Energy of an epoch in joules, of devices and hosts, as far as the calibration covers them."""
    memory_bytes: Interval | None = None
    """Largest peak memory of a worker."""
    speed_up: Interval | None = None
    """Speed-up relative to `baseline`."""
    efficiency: Interval | None = None
    baseline: str = ""
    """Name of the run to which `speed_up` and `efficiency` are relative: of the runs that differ
    only in their number of workers, the run with the fewest. Empty for that run itself."""
    shares: dict[str, float] = Field(default_factory=dict)
    """Kind of cost -> share of an epoch's time: computation, communication, overhead, loader. Empty
    for a pipeline."""
    outside: tuple[str, ...] = ()
    """Quantities outside the calibrated range; if there are any, no interval is valid."""
    validated: str = ""
    """The errors of earlier predictions of this kind, as text, or a note that such predictions were
    not compared with measurements."""
    message: str = ""
    """Why nothing can be predicted."""
