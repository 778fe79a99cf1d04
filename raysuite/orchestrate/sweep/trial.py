"""One trial of a sweep, in an actor of Ray Tune's: the driver of its run's worker group."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysuite.orchestrate import stopping
from raysuite.orchestrate.groups import Leg
from raysuite.orchestrate.losses import record_failure, record_loss, unwritten
from raysuite.orchestrate.node_keeper import DeadlineError
from raysuite.orchestrate.sweep.batch import find_batch
from raysuite.orchestrate.sweep.population import leg_of
from raysuite.orchestrate.sweep.warm import WarmWorkers
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished, Results
from raysuite.records.judged import held_after
from raysuite.records.sweep import wall_seconds

_POLL_SECONDS = 0.1
_ENDING_S = 30.0
"""How long Ray Train may take to end workers that took too long, before its process is ended."""


@dataclass(frozen=True)
class Setting:
    """What all trials of a sweep have in common."""

    results: str
    path: str
    """The driver's working folder."""
    deadline_s: float | None
    """Of each trial, over all of its attempts."""
    environment: dict[str, str] = field(default_factory=dict)
    """Ray's settings, and the driver's own: a cluster that was joined has others."""


def run_trial(config: dict[str, Any], setting: Setting) -> None:
    """Make the run `config["run_id"]` and report each of its epochs; its journal tells the rest.

    Whatever becomes of it is on record when this returns: it does not raise.
    """
    import ray.tune

    os.environ.update(setting.environment)
    if os.path.isdir(setting.path):
        os.chdir(setting.path)
    if setting.path not in sys.path:
        sys.path.insert(0, setting.path)
    results = Results(Path(setting.results))
    plan = plan_of(results, config["run_id"])
    deadline = None
    if setting.deadline_s is not None:
        deadline = time.time() + setting.deadline_s - spent(results, plan.run_id)
    if plan.undecided:
        _release()
        found = find_batch(plan, results, deadline)
        if found is None:
            return
        # when this returns, the driver has the new plan in the place of the other; as text, for
        # Ray Tune tells its search algorithm of a nested value by other names
        ray.tune.report({"run_id": plan.run_id, "plan": found.model_dump_json()})
        plan = found
    told = len(epochs_of(results, plan.run_id))
    plan, leg = leg_of(plan, results)
    for record in _epochs(plan, results, deadline, told, leg):
        ray.tune.report({"run_id": plan.run_id, "epoch": record.epoch})


def plan_of(results: Results, run_id: str) -> RunPlan:
    """The plan of a run that was decided."""
    found = next(plan for plan in results.plans() if plan["run_id"] == run_id)
    return RunPlan.model_validate(found)


def epochs_of(results: Results, run_id: str) -> list[EpochFinished]:
    """Every epoch in a run's journal, those that were made again too, in the order of writing."""
    return [record for record in results.records(run_id) if isinstance(record, EpochFinished)]


def spent(results: Results, run_id: str) -> float:
    """Seconds of wall clock that the search for a run's batch and its earlier attempts took."""
    return wall_seconds(results.records(run_id))


def _epochs(
    plan: RunPlan, results: Results, deadline: float | None, told: int, leg: Leg | None
) -> Iterator[EpochFinished]:
    """Make the run, or a leg of it; its epochs, as they come, but for the first `told` of its
    journal."""
    workers = _start(plan, results, deadline, leg)
    file, size = results.journal_file(plan.run_id), -1
    busy = True
    while busy:
        time.sleep(_POLL_SECONDS)
        busy = workers.busy()
        if file.exists() and (now := file.stat().st_size) != size:
            size = now
            new = epochs_of(results, plan.run_id)[told:]
            told += len(new)
            yield from new
        if deadline is not None and time.time() > deadline + _ENDING_S:
            if results.end_of(plan.run_id) is None:
                record_deadline(plan, results)
            os._exit(1)  # with this process Ray ends its controller and its workers
    _settle(plan, results, workers.error)


_workers: WarmWorkers | None = None
"""Of this process, which drives one trial after the other."""


def _start(plan: RunPlan, results: Results, deadline: float | None, leg: Leg | None) -> WarmWorkers:
    """Begin the run on the workers of the trial before, or on new ones."""
    global _workers
    if _workers is None or not _workers.start(plan, leg, deadline):
        _release()
        _workers = WarmWorkers(plan, results.folder)
        _workers.start(plan, leg, deadline)
    return _workers


def _release() -> None:
    """Let the workers of the trial before go."""
    global _workers
    if _workers is not None:
        _workers.end()
        _workers = None


def _settle(plan: RunPlan, results: Results, error: Exception | None) -> None:
    """Record the end of a run that has none, unless it was asked to stop, or waits for others."""
    if results.end_of(plan.run_id) is not None or held_after(results.records(plan.run_id)):
        return
    if unwritten(error):
        return
    if isinstance(getattr(error, "controller_failure", None), DeadlineError):
        record_deadline(plan, results)
    elif stopping.told(results.folder) is None:
        record_loss(plan, results, error)


def record_deadline(plan: RunPlan, results: Results) -> None:
    """Record that a run took longer than it may."""
    epochs = len({record.epoch for record in epochs_of(results, plan.run_id)})
    message = f"took longer than the sweep's deadline_s allows; {epochs} epoch(s) were finished"
    record_failure(plan, results, "deadline", message)
