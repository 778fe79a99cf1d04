"""Journals of runs whose costs are known, to calibrate with: no figure here was measured."""

from __future__ import annotations

import math
import random
from pathlib import Path

from raysuite.perf.calibration import Calibration, Errors, Model
from raysuite.perf.costs import Work, epoch_terms
from raysuite.plan import RunPlan, make_plans
from raysuite.records import (
    EpochFinished,
    Journal,
    Record,
    Results,
    RunCosts,
    RunFigures,
    RunFinished,
    RunStarted,
    run_figures,
)
from raysuite.records.names import Plan
from raysuite.records.power import PowerUse
from raysuite.records.predicted import Interval
from raysuite.spec import parse_document
from tests.fake_results import ENVIRONMENT, verdict

SPEC = """\
name: made-up
model: resnet20
data: {name: digits, image_size: 16}
training: {epochs: 2, global_batch: 64}
resources: {device: cpu}
matrix:
  strategy, resources.workers: [[single, 1], [ddp, 1], [ddp, 2], [horovod, 1], [horovod, 2]]
  training.global_batch, training.accumulate: BATCHES
"""
WORK = Work(270_000, 1_080_000, 10_000_000)
NAME = "resnet20 at 16 px, cpu"
TRUTH = {
    f"image/{NAME}": 5e-4,
    f"neighbour/{NAME}": 1e-4,
    f"pass/{NAME}": 4e-3,
    f"update/{NAME}": 1e-3,
    "step/ddp": 5e-4,
    "step/horovod": 2e-3,
    "byte/ddp": 1e-9,
    "byte/horovod": 3e-9,
    "epoch/all": 0.02,
}
SEEN, HELD_OUT = "[[32, 1], [96, 1], [96, 2], [256, 1]]", "[[48, 1], [64, 1], [128, 2], [192, 1]]"


def plans(batches: str, **replaced: str) -> list[Plan]:
    text = SPEC.replace("BATCHES", batches)
    for old, new in replaced.items():
        text = text.replace(old, new)
    return [
        plan.model_dump(mode="json") for plan in make_plans(parse_document(text, "spec.yaml"), 0)
    ]


def seconds(plan: Plan) -> float:
    return sum(TRUTH.get(term, 0.0) * n for term, n in epoch_terms(plan, WORK, 2).items())


def calibration_of(costs: dict[str, float], name: str = NAME, work: Work = WORK) -> Calibration:
    """One with these costs, of a node with two processors."""
    none = Errors(median=0, p90=0, largest=0)
    return Calibration(
        machine={"cpu": {"logical_cores": 2}},
        sources=(),
        runs=4,
        workers_per_node=2,
        works={name: work},
        ranges={},
        seconds=Model(costs=costs, sigma=0.1, freedom=4, fit=none, left_out=none),
        bytes=None,
        start=Interval(0, 0, 0),
    )


def measured(plan: Plan, noise: float = 0.0, joules: float | None = None) -> RunFigures:
    """The figures of a run, with what its host drew in an epoch."""
    made = records(plan, noise)
    count = int(plan["workers"])
    power = PowerUse(
        devices=[""] * count,
        device_joules=[None] * count,
        device_busy=[None] * count,
        hosts=["host"] * count,
        host_joules=[joules] * count,
    )
    return run_figures(
        plan,
        [
            each.model_copy(update={"power": power}) if each.kind == "epoch_finished" else each
            for each in made
        ],
    )


def write(folder: Path, batches: str, noise: float = 0.0) -> Results:
    """A results folder with a finished run for each plan. `noise`: of the logarithm of seconds."""
    folder.mkdir(parents=True)
    results = Results(folder)
    made = plans(batches)
    results.write_plans(made)
    (folder / "spec.yaml").write_text(SPEC.replace("BATCHES", batches), "utf-8")
    for plan in made:
        journal = Journal(results.journal_file(plan["run_id"]))
        for record in records(plan, noise):
            journal.write(record)
    return results


def records(plan: Plan, noise: float) -> list[Record]:
    chance = random.Random(plan["run_id"])
    took = seconds(plan) * math.exp(chance.gauss(0, noise))
    images, run_id = plan["dataset"]["train_samples"], plan["run_id"]
    epoch = EpochFinished(
        run_id=run_id,
        epoch=0,
        first_step=0,
        losses=[1.0],
        learning_rates=[0.1],
        images=images,
        seconds=took,
        steady_images=images,
        steady_seconds=took,
        data_wait_seconds=[0.0] * plan["workers"],
        validation_seconds=0.1,
        train_loss=1.0,
        val_loss=1.0,
        val_accuracy=0.5,
        elapsed_seconds=took,
    )
    costs = RunCosts(
        run_id=run_id,
        parameters=WORK.parameters,
        forward_flops=WORK.forward_flops,
        gradient_bytes=WORK.gradient_bytes,
    )
    held = int(5e8 + 1e6 * plan["micro_batch"] + (2e8 if plan["workers"] > 1 else 0))
    end = RunFinished(
        run_id=run_id,
        peak_process_bytes=[held] * plan["workers"],
        start_process_bytes=[4 * 10**8] * plan["workers"],
        peak_device_bytes=[0] * plan["workers"],
        time_to_accuracy=None,
        seconds=2 * took + 1.2,
        first_step_seconds=0.5,
    )
    began = RunStarted(run_id=run_id, plan=plan, environment=ENVIRONMENT)
    second = epoch.model_copy(update={"epoch": 1, "first_step": 1, "elapsed_seconds": 2 * took})
    return [began, verdict(RunPlan.model_validate(plan)), epoch, second, costs, end]
