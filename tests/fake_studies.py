"""Made-up studies in the form of the papers', for tests of figures: no figure here was measured."""

from __future__ import annotations

import random
from pathlib import Path

from raysuite.plan.run_plan import RunPlan
from raysuite.records import Journal, Record, Results, TimeShares
from tests.fake_results import START, write_results

_HEAD = """\
name: made-up
description: Made-up figures for tests
model: resnet20
data: digits
schedule: {name: cosine, warmup_epochs: 1}
training: {epochs: 4, batch_per_worker: 32}
resources: {device: cpu}
repeats: REPEATS
matrix:
"""

THROUGHPUT = (
    _HEAD
    + """\
  resources.workers: [1, 2, 4, 8]
  strategy: [ddp, horovod, deepspeed]
  loader: [native, dali]
  model: [resnet20, resnet32, resnet44]
"""
)
"""Three frameworks, two loaders, three depths, one to eight workers (Aach et al. 2023)."""

SCHEDULES = (
    _HEAD.replace("batch_per_worker: 32", "global_batch: 32, target_accuracy: 0.9")
    + """\
  schedule: [step, cosine, exponential]
  training.global_batch: [32, 64, 128, 256]
"""
)
"""Three schedules at growing global batch (Aach et al. 2023, Fig. 8)."""

SETS = (
    _HEAD
    + """\
  resources.workers: [1, 4]
  strategy: [ddp, horovod]
  data.name, training.batch_per_worker: [[mnist, 64], [cifar10, 32]]
  model: [resnet20, resnet32, vgg11]
"""
)
"""Data sets and networks, each set with its batch (Jansen et al. 2020)."""

ALL = {"throughput": THROUGHPUT, "schedules": SCHEDULES, "sets": SETS}


def write_study(folder: Path, study: str, repeats: int = 1) -> Results:
    """A results folder of one of ALL; runs with several workers were profiled."""
    results = write_results(folder, ALL[study], repeats, elsewhere=True)
    for data in results.plans():
        plan = RunPlan.model_validate(data)
        if plan.workers > 1 and study == "throughput":
            Journal(results.journal_file(plan.run_id)).write(time_shares(plan))
    return results


def time_shares(plan: RunPlan) -> Record:
    """Communication grows with the number of workers, and half of it is hidden."""
    chance = random.Random(plan.run_id)
    seconds = [chance.uniform(0.95, 1.05) for _ in range(plan.workers)]
    waits = 0.06 * plan.workers**0.7
    return TimeShares(
        run_id=plan.run_id,
        time=START,
        steps=20,
        warmup_steps=10,
        window_seconds=seconds,
        computation_seconds=[0.5 * each for each in seconds],
        communication_seconds=[2 * waits * each for each in seconds],
        communication_exposed_seconds=[waits * each for each in seconds],
        data_seconds=[0.12 * each for each in seconds],
        data_exposed_seconds=[0.1 * each for each in seconds],
        seconds=3.0,
    )
