"""What was predicted of a run: never part of a journal, so that nothing takes it as measured."""

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
        """The same interval in another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def inverse(self, numerator: float) -> Interval:
        """Of `numerator` over this figure."""
        return Interval(numerator / self.value, numerator / self.high, numerator / self.low)


class RunPredicted(RecordBase):
    """A run's figures by a calibrated model."""

    kind: Literal["run_predicted"] = "run_predicted"
    calibration: str
    """The file of the calibration."""
    level: float = 0.9
    """Of each interval: the share of measured runs in it, if the model holds."""
    throughput: Interval | None = None
    """Images per second over all workers; None where nothing can be predicted."""
    epoch_seconds: Interval | None = None
    run_seconds: Interval | None = None
    """Wall time of the run, with its start and its validations."""
    joules: Interval | None = None
    """Energy of an epoch, of the devices and hosts that the calibration knows."""
    memory_bytes: Interval | None = None
    """Peak of the worker's memory that has most."""
    speed_up: Interval | None = None
    """Against `baseline`."""
    efficiency: Interval | None = None
    baseline: str = ""
    """The run of the same variant with the fewest workers."""
    shares: dict[str, float] = Field(default_factory=dict)
    """Part of an epoch by kind: computation, communication, overhead, loader, bubble."""
    outside: tuple[str, ...] = ()
    """In which quantities the run is outside of the calibrated range: no interval holds there."""
    validated: str = ""
    """How far predictions of this kind were from measurements, or that none was held against
    any."""
    message: str = ""
    """Why nothing can be predicted."""
