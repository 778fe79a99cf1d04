"""Stop trials early with Ray Tune's schedulers, whose input is read from the journals.

A scheduler does not kill a trial: its decision is written to the results folder, the workers end
between two steps, and rank 0 records the decision. In a resumed sweep, the scheduler gets the
journals' epochs again in their original order, so that it makes the same decisions.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

from raysuite.files import append_line, read_lines
from raysuite.orchestrate import stopping
from raysuite.orchestrate.sweep.trial import epochs_of
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished, Journal, Results, RunPruned
from raysuite.records.base import content_of
from raysuite.spec.search import SearchOptions
from raysuite.spec.tasks import TaskFacts
from raysuite.train.stop_together import Prune

ORDER = "epoch-order.jsonl"
"""File in the results folder: run, epoch and time of each EpochFinished, in the order in which the
scheduler got them. This order can differ from the order of the times."""

_EpochKey = tuple[str, int, float]
_EPOCH_KEY: TypeAdapter[_EpochKey] = TypeAdapter(_EpochKey)


@dataclass(frozen=True)
class TuneTrial:
    """The attributes of a trial that Ray Tune's schedulers need. Resumed trials keep their id."""

    trial_id: str


def scheduler_of(search: SearchOptions, most_epochs: int) -> TrialScheduler | None:
    """Ray Tune's scheduler for a sweep whose trials have at most `most_epochs` epochs; None if the
    sweep has no scheduler."""
    options = search.scheduler
    common: dict[str, Any] = {"time_attr": "epochs", "metric": "value", "mode": "max"}
    if options.name == "asha":
        return AsyncHyperBandScheduler(
            max_t=max(most_epochs, options.grace_epochs),
            grace_period=options.grace_epochs,
            reduction_factor=options.reduction_factor,
            brackets=options.brackets,
            **common,
        )
    if options.name == "median":
        return MedianStoppingRule(
            grace_period=options.grace_epochs,
            min_samples_required=options.min_trials,
            # infinite, so that no trial is paused in favour of another
            min_time_slice=math.inf,  # type: ignore[arg-type]
            **common,
        )
    return None


_LOWEST = -1e300
"""Replaces minus infinity for ASHA, which interpolates its cutoff between two values. The median
rule ignores infinities."""


class JournaledScheduler(FIFOScheduler):
    """Passes each epoch to Ray Tune's scheduler once. If the scheduler ends a run, asks the run's
    workers to stop."""

    def __init__(self, search: SearchOptions, results: Results, most_epochs: int) -> None:
        super().__init__()
        self._search = search
        self._results = results
        self._scheduler = scheduler_of(search, most_epochs)
        self._worst = _LOWEST if search.scheduler.name == "asha" else -math.inf
        """The value of a run that diverged."""
        self._plans: dict[str, RunPlan] = {}
        self._seen: set[tuple[str, int]] = set()
        self._order = {key: place for place, key in enumerate(_read(results.folder / ORDER))}
        self._stopped: set[str] = set()
        self._pruned: dict[str, Prune] = {}

    def add(self, plan: RunPlan) -> None:
        """Add a run that is about to begin or to be resumed."""
        if plan.run_id in self._plans:
            return
        self._plans[plan.run_id] = plan
        if self._scheduler is not None:
            # Tune draws brackets from numpy's random state: a resumed trial gets the same bracket
            with _numpy_seeded(self._search.seed, plan.index):
                self._scheduler.on_trial_add(None, TuneTrial(plan.run_id))  # type: ignore[arg-type]

    def replay(self, plans: Iterable[RunPlan]) -> None:
        """Pass the journals' epochs to the scheduler. The epochs that it got in earlier attempts
        come first, in their original order; all other epochs follow, by time."""
        for plan in plans:
            self.add(plan)
        epochs = [epoch for run_id in self._plans for epoch in epochs_of(self._results, run_id)]
        last = len(self._order)
        epochs.sort(key=lambda each: (self._order.get(_key(each), last), each.time))
        for epoch in epochs:
            self.on_epoch(epoch)

    def on_epoch(self, epoch: EpochFinished) -> None:
        """Pass an epoch to the scheduler, unless this was done before or the epoch has no value.

        A run that has to end may finish some more epochs before its workers stop; these epochs are
        ignored.
        """
        run_id = epoch.run_id
        if (
            self._scheduler is None
            or run_id in self._stopped
            or (run_id, epoch.epoch) in self._seen
        ):
            return
        task = self._plans[run_id].task
        value, sign = self._value(epoch, task)
        if value is None:
            return
        self._seen.add((run_id, epoch.epoch))
        self._write_down(epoch)
        compared = sign * value if math.isfinite(value) else self._worst
        found = {"epochs": epoch.epoch + 1, "value": compared}
        action = self._scheduler.on_trial_result(None, TuneTrial(run_id), found)  # type: ignore[arg-type]
        if action != TrialScheduler.STOP:
            return
        self._stopped.add(run_id)
        if epoch.epoch + 1 < self._plans[run_id].spec.training.epochs:
            self._prune(run_id, epoch, value)

    def _write_down(self, epoch: EpochFinished) -> None:
        if _key(epoch) in self._order:
            return
        self._order[_key(epoch)] = len(self._order)
        append_line(self._results.folder / ORDER, json.dumps(_key(epoch)).encode())

    def _prune(self, run_id: str, epoch: EpochFinished, value: float) -> None:
        if self._results.end_of(run_id) is None:
            task = self._plans[run_id].task
            by_rate = self._search.wanted[0] == "throughput"
            goal = f"{task.unit}/s" if by_rate else f"validation {task.main.title.lower()}"
            message = f"compared by its {goal} after epoch {epoch.epoch + 1}"
            finite = value if math.isfinite(value) else None
            self._pruned[run_id] = Prune(self._search.scheduler.name, finite, message)
            stopping.request_prune(self._results.folder, run_id, self._pruned[run_id])

    def settle(self, plan: RunPlan) -> None:
        """Record the end of a pruned run whose workers were lost before they recorded the end."""
        run_id = plan.run_id
        prune = self._pruned.get(run_id)
        if prune is None or self._results.end_of(run_id) is not None:
            return
        record = RunPruned(
            run_id=run_id,
            by=prune.by,
            epoch=max((each.epoch for each in epochs_of(self._results, run_id)), default=0),
            value=prune.value,
            message=prune.message,
            settled=True,
        )
        Journal(self._results.journal_file(run_id)).write(record)

    def _value(self, epoch: EpochFinished, task: TaskFacts) -> tuple[float | None, int]:
        """The value by which runs are compared at one epoch, and the sign by which it is multiplied
        so that higher is better.

        The value is the throughput if that is the goal, else the primary metric. The throughput is
        None if the whole epoch was warm-up; the caller then ignores the epoch.
        """
        if self._search.wanted[0] == "throughput":
            rate = epoch.steady_images / epoch.steady_seconds if epoch.steady_seconds else None
            return rate, 1
        return epoch.validation.get(task.primary), task.main.sign

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Called by Ray Tune at each report. Tune itself never ends a trial."""
        if "epoch" in result:
            line = content_of(result["epoch"].encode())
            self.on_epoch(EpochFinished.model_validate_json(line))
        return str(TrialScheduler.CONTINUE)


def _key(epoch: EpochFinished) -> _EpochKey:
    return epoch.run_id, epoch.epoch, epoch.time


def _read(file: Path) -> Iterator[_EpochKey]:
    """The epochs that were passed to the scheduler, without damaged lines."""
    for line in read_lines(file):
        with contextlib.suppress(ValidationError):
            yield _EPOCH_KEY.validate_json(line)


@contextmanager
def _numpy_seeded(*seed: int) -> Iterator[None]:
    """Seed numpy's global state, for Ray Tune's schedulers, and restore it after the context."""
    before = np.random.get_state()
    np.random.seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
    try:
        yield
    finally:
        np.random.set_state(before)
