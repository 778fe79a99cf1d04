"""Made-up results of sweeps, written through the real Journal: no figure here was measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from raysuite.plan.run_plan import RunPlan
from raysuite.plan.space import drawn
from raysuite.plan.trials import trial_plan
from raysuite.plan.trials import write_sweep as record_sweep
from raysuite.records import Journal, Record, Results, RunFailed, RunPruned
from raysuite.records.journal import Decided
from raysuite.spec import parse_document
from raysuite.spec.search_check import read_search
from tests.fake_results import START, epoch, run_records

BASE: dict[str, Any] = {
    "name": "made-up-sweep",
    "description": "Made-up figures for tests",
    "model": "resnet20",
    "data": "digits",
    "strategy": "ddp",
    "schedule": {"name": "cosine", "warmup_epochs": 1},
    "training": {"epochs": 9, "global_batch": 64, "target_accuracy": 0.9},
    "resources": {"device": "cpu", "workers": 2},
}
SPACE: dict[str, Any] = {
    "optimizer.lr": {"loguniform": [0.001, 1.0]},
    "optimizer.momentum": {"uniform": [0.5, 0.95]},
    "training.global_batch": {"choice": [32, 64, 128]},
    "strategy": {"choice": ["ddp", "horovod", {"name": "deepspeed"}]},
    "strategy.zero_stage": {"choice": [0, 1, 2], "when": {"strategy": "deepspeed"}},
}
RUNGS = (1, 3)
LENGTH = 100.0
"""Seconds between the starts of two trials: they run one after the other."""


def write_sweep(
    folder: Path,
    trials: int = 12,
    scheduler: str = "asha",
    goals: Collection[str] = ("accuracy",),
    space: Mapping[str, Any] | None = None,
    fails: Mapping[int, RunFailed] | None = None,
    missing: Collection[int] = (),
) -> Results:
    """A sweep's results folder: with `asha`, the worse two thirds of the trials end at each rung.

    `fails` maps a trial's number to its end; `missing` trials were decided and never started.
    """
    asked = {"trials": trials, "space": dict(space or SPACE), "goals": list(goals)}
    asked["scheduler"] = scheduler
    if scheduler == "asha":
        asked["scheduler"] = {"name": "asha", "grace_epochs": RUNGS[0], "reduction_factor": 3}
    document = parse_document(yaml.safe_dump(BASE | {"search": asked}, sort_keys=False), "s.yaml")
    results = Results(folder)
    record_sweep(document, results)
    results.write_decided(Decided([], is_all=True))
    seen: dict[int, list[float]] = {rung: [] for rung in RUNGS}
    search = read_search(document)
    for number, values in enumerate(drawn(search)):
        plan = trial_plan(document, values, number, gpus=0)
        results.add_plan(plan.model_dump(mode="json"))
        if number in missing:
            continue
        journal = Journal(results.journal_file(plan.run_id))
        for record in _records(plan, (fails or {}).get(number), seen, scheduler):
            journal.write(record)
    return results


def _records(
    plan: RunPlan, failure: RunFailed | None, seen: dict[int, list[float]], scheduler: str
) -> list[Record]:
    made: list[Record] = []
    now, elapsed, done = START + LENGTH * plan.index, 0.0, 0
    told = run_records(plan, failure)
    started = [r.model_copy(update={"time": now}) for r in told[:2]]
    rate = plan.spec.optimizer.lr
    distance = abs(math.log10(rate) + 1)
    top = 0.97 - 0.06 * distance**2
    for number in range(plan.spec.training.epochs):
        if failure is not None and number == (0 if failure.reason == "gate" else 2):
            break
        accuracy = max(0.1, top * (1 - 0.6 * math.exp(-number / (1 + distance))))
        made.append(epoch(plan, number, now, elapsed, accuracy))
        elapsed, done = made[-1].elapsed_seconds, number + 1
        if scheduler != "none" and done in seen:
            seen[done].append(accuracy)
            if sorted(seen[done], reverse=True).index(accuracy) >= math.ceil(len(seen[done]) / 3):
                end = RunPruned(
                    run_id=plan.run_id,
                    time=now + 2 + elapsed,
                    by=scheduler,
                    epoch=number,
                    value=accuracy,
                )
                return [*started, *made, end]
    if failure is not None:
        failed = failure.model_copy(update={"run_id": plan.run_id, "time": now + 2 + elapsed})
        return [*started, *made, failed]
    met = [e.elapsed_seconds for e in made if e.val_accuracy >= 0.9]
    update = {
        "time": now + 2 + elapsed,
        "time_to_accuracy": met[0] if met else None,
        "seconds": elapsed + 2,
    }
    return [*started, *made, told[-1].model_copy(update=update)]
