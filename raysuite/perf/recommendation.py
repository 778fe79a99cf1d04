"""Rank candidates for a spec's strategy, batch size and number of workers by the predictions of a
calibration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raysuite.records.names import Plan
from raysuite.records.predicted import Interval, RunPredicted
from raysuite.spec.strategies import STRATEGY_OPTIONS


def choices(
    workers: Sequence[int], batches: Sequence[int], passes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield every candidate, even an infeasible one, as dotted keys and values."""
    families = STRATEGY_OPTIONS.values()
    for count, family, batch, accumulate in itertools.product(workers, families, batches, passes):
        for strategy in family.candidates(count, accumulate):
            yield {
                "strategy": strategy,
                "resources.workers": count,
                "training.global_batch": batch,
                "training.accumulate": accumulate,
            }


@dataclass(frozen=True)
class Choice:
    """One candidate with its prediction and rank."""

    plan: Plan
    predicted: RunPredicted
    efficiency: float | None
    """Efficiency relative to the fastest candidate with one worker and the same global batch size;
    None if there is none."""
    rank: int
    """Rank, counted from 1; equal for candidates with indistinguishable predictions."""

    @property
    def tied(self) -> bool:
        """Whether the prediction cannot be distinguished from that of the best candidate."""
        return self.rank == 1

    @property
    def epoch(self) -> Interval:
        """Seconds of an epoch."""
        assert self.predicted.epoch_seconds is not None
        return self.predicted.epoch_seconds


def rank(
    plans: Sequence[Plan],
    predicted: Sequence[RunPredicted],
    least_efficiency: float = 0.0,
    most_bytes: float = math.inf,
    most_node_hours: float = math.inf,
    workers_per_node: int = 1,
    goal: Literal["time", "energy"] = "time",
) -> list[Choice]:
    """Sort the candidates by the predicted duration or energy of an epoch, lowest first; candidates
    outside the calibrated range come last. A candidate is left out if it cannot be predicted, if it
    violates a limit, or if its value for a limit is unknown.

    Ranks are given in this order. A candidate joins the first rank in which the prediction interval
    of the best candidate ends at or above the candidate's value; if there is none, the candidate
    begins a new rank. Part of the errors is common to all candidates, so some candidates may
    share a rank although their order is certain.
    """

    def aim(each: RunPredicted) -> Interval | None:
        return each.joules if goal == "energy" else each.epoch_seconds

    pairs = [pair for pair in zip(plans, predicted, strict=True) if pair[1].epoch_seconds]
    alone: dict[int, float] = {}
    for plan, each in pairs:
        if int(plan["workers"]) == 1 and each.epoch_seconds:
            batch = int(plan["global_batch"])
            alone[batch] = min(alone.get(batch, math.inf), each.epoch_seconds.value)
    found: list[Choice] = []
    firsts: dict[int, Interval] = {}
    order = sorted(pairs, key=lambda pair: (bool(pair[1].outside), aim(pair[1]) or ()))
    for plan, each in order:
        own = aim(each)
        assert each.epoch_seconds is not None
        assert each.run_seconds is not None
        if own is None:
            continue
        nodes = math.ceil(int(plan["workers"]) / workers_per_node)
        if nodes * each.run_seconds.high / 3600 > most_node_hours:
            continue
        base = alone.get(int(plan["global_batch"]))
        efficiency = base and base / each.epoch_seconds.value / int(plan["workers"])
        if least_efficiency and (efficiency is None or efficiency < least_efficiency):
            continue
        needed = math.inf if each.memory_bytes is None else each.memory_bytes.high
        if needed > most_bytes:
            continue
        place = next((n for n, first in firsts.items() if own.value <= first.high), len(found) + 1)
        firsts.setdefault(place, own)
        found.append(Choice(plan, each, efficiency, place))
    return found
