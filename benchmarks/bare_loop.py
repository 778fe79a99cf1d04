"""The baseline of measurement.py: a loop with the same engine and loader, but almost no measuring.

torchrun --nproc-per-node 2 benchmarks/bare_loop.py PLAN.json OUT.json

It keeps no losses, times no waits, and neither validates nor samples. It reads the clock at the
start and the end of each epoch, and at the end of the warm-up.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from raysuite import models, optim
from raysuite.data import make_loader, permutation, prepare, rank_slices
from raysuite.measure.clock import now
from raysuite.parallel import make_strategy
from raysuite.parallel.base import StepSettings
from raysuite.plan import RunPlan
from raysuite.train.world import world_from_environment


def main(plan_file: Path, out: Path) -> None:
    """Train the plan's epochs and write the throughput of the steps after the warm-up."""
    plan = RunPlan.model_validate_json(plan_file.read_text())
    world = world_from_environment(plan.device)
    torch.set_num_threads(plan.spec.resources.cpus_per_worker)
    strategy = make_strategy(plan.spec.strategy)
    strategy.start(world)
    torch.manual_seed(plan.seed)
    engine = strategy.prepare(
        models.build(plan.spec.model, plan.dataset).to(world.device),
        lambda parameters: optim.build_optimizer(plan.spec.optimizer, parameters, plan.peak_lr),
        StepSettings(micro_batch=plan.micro_batch),
    )
    prepared = prepare(plan.spec.data, plan.dataset)
    loader = make_loader(prepared, "train", plan.spec.loader, world.device)
    images, seconds, step, warmup = 0, 0.0, 0, plan.spec.measure.warmup_steps
    for epoch in range(plan.spec.training.epochs):
        order = permutation(plan.dataset.train_samples, plan.seed, epoch)
        draw = (plan.seed, epoch)
        slices = [
            part
            for parts in rank_slices(
                order, plan.global_batch, plan.workers, world.rank, plan.accumulate, draw
            )
            for part in parts
        ]
        engine.model.train()
        counted, began = 0, now(world.device)
        for batch in loader.batches(slices):
            if step == warmup:
                counted, began = 0, now(world.device)
            engine.step([batch], plan.peak_lr)
            step += 1
            counted += batch.of_global
        if step > warmup:
            seconds += now(world.device) - began
            images += counted
    slowest = engine.comm.all_reduce(torch.tensor([seconds], dtype=torch.float64), "max").item()
    if world.rank == 0:
        out.write_text(json.dumps({"throughput": images / slowest}))
    loader.close()
    engine.close()
    strategy.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
