"""Made-up results folders for tests, written through the real Journal: no figure here was measured.

The shapes of the curves are plausible and depend on the seed alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from pathlib import Path

from raysuite.optim.schedule import factor
from raysuite.plan import make_plans
from raysuite.plan.batch_candidates import outcome
from raysuite.plan.run_plan import RunPlan
from raysuite.records import (
    BatchTried,
    EpochFinished,
    GateVerdict,
    Journal,
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunStarted,
)
from raysuite.records.confusion import ClassFigures
from raysuite.spec import parse_document

START = 1_700_000_000.0
PACE = {
    "single": 1000.0,
    "ddp": 950.0,
    "horovod": 900.0,
    "deepspeed": 800.0,
    "custom": 700.0,
    "fabric": 940.0,
}

TWELVE_ROWS = """\
name: made-up
description: Made-up figures for tests
model: resnet20
data: digits
schedule: {name: cosine, warmup_epochs: 1}
training: {epochs: 6, global_batch: 64, target_accuracy: 0.9}
resources: {device: cpu}
repeats: REPEATS
matrix:
  resources.workers: [1, 2]
  strategy: [ddp, horovod, deepspeed]
  loader: [native, dali]
"""

FOUR_KINDS = (
    TWELVE_ROWS.replace("strategy:", "strategy, training.compile:")
    .replace(
        "[ddp, horovod, deepspeed]",
        "[[ddp, 'off'], [ddp, default], [fabric, 'off'], [horovod, 'off']]",
    )
    .replace("[native, dali]", "[native]")
    .replace("[1, 2]", "[2]")
)
"""DDP bare, compiled and wrapped, and Horovod."""

ENVIRONMENT = {
    "hostname": "made-up-host",
    "platform": "Linux",
    "cpu": {"model": "Made-up CPU", "physical_cores": 2, "logical_cores": 2},
    "memory_bytes": 8 * 2**30,
    "gpus": [],
    "python": "3.11.0",
    "versions": {"raysuite": "0.1.0", "torch": "2.15.0"},
    "git": {"commit": "0123abc", "dirty": False},
    "fingerprint": "feedbeef",
}


def write_results(
    folder: Path,
    spec: str = TWELVE_ROWS,
    repeats: int = 1,
    fails: Mapping[int, RunFailed] | None = None,
    missing: Collection[int] = (),
    elsewhere: bool = False,
    sizes: Mapping[int, int] | None = None,
    classes: ClassFigures | None = None,
) -> Results:
    """A results folder with a finished run for each plan, but for those that fail or are missing.

    `fails` maps the index of a run to its end; `missing` names runs without any journal.
    `elsewhere` takes named data sets at their official counts. `sizes` maps a number of workers to
    the micro-batch that is found for it by trial. `classes`: of every finished run.
    """
    text = spec.replace("REPEATS", str(repeats))
    plans = make_plans(parse_document(text, "spec.yaml"), gpus=0, elsewhere=elsewhere)
    found = {}
    for place, plan in enumerate(plans):
        if plan.undecided and sizes:
            size = sizes[plan.workers]
            tried = [
                BatchTried(stage="alone", micro_batch=n, fits=n == size) for n in (size, size + 1)
            ]
            plans[place], record = outcome(plan, tried, 1.0)
            found[record.run_id] = record
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(text, "utf-8")
    dump = [plan.model_dump(mode="json") for plan in plans]
    Results(folder).write_plans(dump)
    results = Results(folder)
    for plan in plans:
        if plan.index in missing:
            continue
        journal = Journal(results.journal_file(plan.run_id))
        if plan.run_id in found:
            journal.write(found[plan.run_id])
        for record in run_records(plan, (fails or {}).get(plan.index)):
            if isinstance(record, RunFinished):
                record = record.model_copy(update={"classes": classes})
            journal.write(record)
    return results


def run_records(plan: RunPlan, failure: RunFailed | None = None) -> list[Record]:
    """All Records of one run; with a failure, half its epochs (none if the gate caught it)."""
    now = START + 100.0 * plan.index
    caught = failure is not None and failure.reason == "gate"
    records: list[Record] = [
        RunStarted(
            run_id=plan.run_id,
            time=now,
            plan=plan.model_dump(mode="json"),
            environment=ENVIRONMENT,
        ),
        verdict(plan, passed=not caught, time=now + 1),
    ]
    epochs = 0 if caught else plan.spec.training.epochs // (2 if failure else 1)
    elapsed = 0.0
    for number in range(epochs):
        records.append(epoch(plan, number, now, elapsed))
        elapsed = records[-1].elapsed_seconds
    if failure is not None:
        records.append(failure.model_copy(update={"run_id": plan.run_id, "time": now + 60}))
        return records
    target = plan.spec.training.target_accuracy
    met = [
        r.elapsed_seconds
        for r in records
        if isinstance(r, EpochFinished) and target and r.val_accuracy >= target
    ]
    records.append(
        RunFinished(
            run_id=plan.run_id,
            time=now + 2 + elapsed,
            peak_process_bytes=[(600 + 10 * rank) * 2**20 for rank in range(plan.workers)],
            start_process_bytes=[500 * 2**20] * plan.workers,
            peak_device_bytes=[0] * plan.workers,
            time_to_accuracy=met[0] if met else None,
            seconds=elapsed + 2,
            first_step_seconds=0.8,
        )
    )
    return records


def verdict(plan: RunPlan, passed: bool = True, time: float = START) -> GateVerdict:
    """A made-up verdict of the gate."""
    return GateVerdict(
        run_id=plan.run_id,
        time=time,
        strategy=plan.spec.strategy.name,
        workers=plan.workers,
        passed=passed,
        ranks_equal=passed,
        error=1.2e-7 if passed else 0.31,
        error_batchnorm=2.5e-7 if passed else 0.4,
        tolerance=1e-5,
        rule="ranks equal bit by bit; error <= 1e-05 after 3 steps",
        steps=3,
        message="" if passed else "the ranks disagree",
    )


def epoch(
    plan: RunPlan, number: int, now: float = START, elapsed: float = 0.0, accuracy: float = -1.0
) -> EpochFinished:
    """A made-up epoch; the first has ten warm-up steps, or all but one where there are fewer."""
    chance = random.Random(f"{plan.run_id}/{number}")
    steps = plan.steps_per_epoch
    images = plan.dataset.train_samples
    pace = PACE[plan.spec.strategy.name] * plan.workers**0.8 * chance.uniform(0.98, 1.02)
    pace *= 1.1 if plan.spec.loader.name == "dali" else 1.0
    compiled = plan.spec.training.compile != "off"
    pace *= 1.5 if compiled else 1.0
    seconds = images / pace
    warm = min(10, steps - 1) if number == 0 else 0
    first = number * steps
    losses = [2.3 * math.exp(-(first + i) / 60) + chance.uniform(0, 0.1) for i in range(steps)]
    total = plan.total_steps
    if accuracy < 0:
        accuracy = 1 - 0.6 * math.exp(-number) - chance.uniform(0, 0.02)
    return EpochFinished(
        run_id=plan.run_id,
        time=now + 2 + elapsed + seconds + 0.1,
        epoch=number,
        first_step=first,
        losses=losses,
        learning_rates=[
            plan.peak_lr * factor(plan.spec.schedule, first + i, steps, total) for i in range(steps)
        ],
        images=images,
        seconds=seconds + 0.05 * warm,
        steady_images=images - warm * plan.global_batch,
        steady_seconds=(images - warm * plan.global_batch) / pace,
        data_wait_seconds=[seconds * 0.1] * plan.workers,
        validation_seconds=0.1,
        compile_seconds=20.0 if compiled and number == 0 else 0.0,
        train_loss=sum(losses) / steps,
        val_loss=1 - accuracy,
        val_accuracy=accuracy,
        elapsed_seconds=elapsed + seconds + 0.05 * warm + 0.1,
    )
