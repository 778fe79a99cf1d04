"""The baseline of sweep_against_tune.py: Ray Tune with Ray's TorchTrainer, written by hand, without
raysuite's orchestration.

python benchmarks/tune_by_hand.py PLANS.json OUT.json

It uses raysuite's model and loader, so that both sides do the same work.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import train, tune
from ray.train.torch import TorchTrainer, prepare_model
from ray.tune.integration.ray_train import TuneReportCallback
from torch.nn import functional

from raysuite import models
from raysuite.data import Slice, make_loader, permutation, prepare, rank_slices
from raysuite.plan import RunPlan

SIDE_BY_SIDE = 2


def slices(order: NDArray[np.int64], batch: int) -> list[Slice]:
    """The batches of one worker."""
    return [part for parts in rank_slices(order, batch, 1, 0) for part in parts]


def loop(config: dict[str, Any]) -> None:
    """Train a plan's epochs on one worker, and report the validation accuracy of each."""
    plan = RunPlan.model_validate_json(config["plan"])
    torch.set_num_threads(plan.spec.resources.cpus_per_worker)
    torch.manual_seed(plan.seed)
    model = prepare_model(models.build(plan.spec.model, plan.dataset))
    options = plan.spec.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=plan.peak_lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    prepared, cpu = prepare(plan.spec.data, plan.dataset), torch.device("cpu")
    loaders = {
        split: make_loader(prepared, split, plan.spec.loader, cpu) for split in ("train", "val")
    }
    for epoch in range(plan.spec.training.epochs):
        model.train()
        order = permutation(plan.dataset.train_samples, plan.seed, epoch)
        for batch in loaders["train"].batches(slices(order, plan.global_batch)):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch.images), batch.labels).backward()
            optimizer.step()
        model.eval()
        right = 0
        with torch.inference_mode():
            order = np.arange(plan.dataset.val_samples)
            for batch in loaders["val"].batches(slices(order, plan.global_batch)):
                right += int((model(batch.images).argmax(1) == batch.labels).sum())
        train.report({"accuracy": right / plan.dataset.val_samples})


def trial(config: dict[str, Any]) -> None:
    """One trial, in Ray Tune's process."""
    trainer = TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(
            storage_path=config["storage"], callbacks=[TuneReportCallback()]
        ),
    )
    trainer.fit()


def main(plans: Path, out: Path) -> None:
    """Run a trial of each plan, SIDE_BY_SIDE at a time, and write their accuracies."""
    with tempfile.TemporaryDirectory() as storage:
        tuner = tune.Tuner(
            # the process that drives a trial only waits; the worker has the CPU
            tune.with_resources(trial, {"CPU": 0, "driver": 1}),
            param_space={
                "plan": tune.grid_search(list(map(json.dumps, json.loads(plans.read_text())))),
                "storage": storage,
            },
            tune_config=tune.TuneConfig(max_concurrent_trials=SIDE_BY_SIDE),
            run_config=tune.RunConfig(storage_path=storage),
        )
        results = tuner.fit()
    out.write_text(json.dumps([each.metrics["accuracy"] for each in results]))


if __name__ == "__main__":
    ray.init("local", num_cpus=SIDE_BY_SIDE, resources={"driver": SIDE_BY_SIDE})
    main(Path(sys.argv[1]), Path(sys.argv[2]))
