"""Candidates for a spec's strategy, batch and workers, ranked by what a calibration predicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raysuite.records.names import Plan
from raysuite.records.predicted import Interval, RunPredicted

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "single"},
    {"name": "ddp"},
    {"name": "horovod"},
    *({"name": "deepspeed", "zero_stage": stage} for stage in range(4)),
)
"""Those that compute what one process would; compression, which changes it, is for a person to
choose."""


def choices(
    workers: Sequence[int], batches: Sequence[int], passes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Dotted keys of every candidate; whether it can be is for the plan to decide."""
    for count, strategy, batch, accumulate in itertools.product(
        workers, STRATEGIES, batches, passes
    ):
        if strategy["name"] != "single" or count == 1:
            yield {
                "strategy": strategy,
                "resources.workers": count,
                "training.global_batch": batch,
                "training.accumulate": accumulate,
            }


@dataclass(frozen=True)
class Choice:
    """One candidate."""

    plan: Plan
    predicted: RunPredicted
    efficiency: float | None
    """Against the fastest candidate with one worker and the same batch; None without one."""
    tied: bool
    """With the best one: their difference is within the noise of a run."""

    @property
    def epoch(self) -> Interval:
        """Seconds."""
        assert self.predicted.epoch_seconds is not None
        return self.predicted.epoch_seconds


def rank(
    plans: Sequence[Plan],
    predicted: Sequence[RunPredicted],
    least_efficiency: float = 0.0,
    most_bytes: float = math.inf,
) -> list[Choice]:
    """The candidates that can be predicted and are within the limits, the shortest epoch first, and
    last what is out of the calibrated range.

    One is tied with the best where the best one's prediction interval holds its epoch. A part of
    the errors is common to all, so that a tie is rather named than missed.
    """
    pairs = [pair for pair in zip(plans, predicted, strict=True) if pair[1].epoch_seconds]
    alone: dict[int, float] = {}
    for plan, each in pairs:
        if int(plan["workers"]) == 1 and each.epoch_seconds:
            batch = int(plan["global_batch"])
            alone[batch] = min(alone.get(batch, math.inf), each.epoch_seconds.value)
    found: list[Choice] = []
    order = sorted(pairs, key=lambda pair: (bool(pair[1].outside), pair[1].epoch_seconds or ()))
    for plan, each in order:
        assert each.epoch_seconds is not None
        base = alone.get(int(plan["global_batch"]))
        efficiency = base and base / each.epoch_seconds.value / int(plan["workers"])
        if efficiency is not None and efficiency < least_efficiency:
            continue
        if each.memory_bytes is not None and each.memory_bytes.high > most_bytes:
            continue
        tied = not found or each.epoch_seconds.value <= found[0].epoch.high
        found.append(Choice(plan, each, efficiency, tied))
    return found
