"""The baseline of overhead.py: PyTorch-DDP written by hand, without raysuite's loop.

torchrun --nproc-per-node 2 benchmarks/plain_ddp.py PLAN.json OUT.json

It uses raysuite's model and loader, so that both sides do the same work. It validates after each
epoch, and measures as `raysuite run` does: without the first steps, epoch by epoch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from raysuite import models
from raysuite.data import Loader, Slice, make_loader, permutation, prepare, rank_slices
from raysuite.plan import RunPlan


def main(plan_file: Path, out: Path) -> None:
    """Train the plan's epochs and write throughput and the time of the first step."""
    plan = RunPlan.model_validate_json(plan_file.read_text())
    dist.init_process_group("gloo")
    torch.set_num_threads(plan.spec.resources.cpus_per_worker)
    torch.manual_seed(plan.seed)
    model = DistributedDataParallel(models.build(plan.spec.model, plan.dataset))
    options = plan.spec.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=plan.peak_lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    data = prepare(plan.spec.data, plan.dataset)
    loader, validation = (
        make_loader(data, split, plan.spec.loader, torch.device("cpu"))
        for split in ("train", "val")
    )
    images, seconds, step, first_step = 0, 0.0, 0, 0.0
    for epoch in range(plan.spec.training.epochs):
        slices = own_slices(permutation(plan.dataset.train_samples, plan.seed, epoch), plan)
        dist.barrier()
        began = time.perf_counter()
        counted = 0
        for batch in loader.batches(slices):
            if step == plan.spec.measure.warmup_steps:
                began, counted = time.perf_counter(), 0
            optimizer.zero_grad()
            functional.cross_entropy(model(batch.images), batch.labels).backward()
            optimizer.step()
            step += 1
            counted += batch.of_global
            first_step = first_step or time.time()
        if step > plan.spec.measure.warmup_steps:
            images += counted
            seconds += time.perf_counter() - began
        validate(model, validation, plan)
    slowest = torch.tensor([seconds])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        result = {"throughput": images / slowest.item(), "first_step_time": first_step}
        out.write_text(json.dumps(result))
    loader.close()
    validation.close()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a normal exit frees Gloo's threads; about one in twenty aborts


def own_slices(order: NDArray[np.int64], plan: RunPlan) -> list[Slice]:
    """This rank's share of each batch of `order` [samples]."""
    batches = rank_slices(order, plan.global_batch, plan.workers, dist.get_rank())
    return [part for parts in batches for part in parts]


def validate(model: DistributedDataParallel, loader: Loader, plan: RunPlan) -> float:
    """Accuracy over the validation split, in [0, 1]; each rank takes a share of each batch."""
    order = np.arange(plan.dataset.val_samples)
    model.eval()
    right = torch.zeros(1)
    with torch.no_grad():
        for batch in loader.batches(own_slices(order, plan)):
            found = model.module(batch.images).argmax(1) == batch.labels
            right += found[: batch.real].sum()
    dist.all_reduce(right)
    model.train()
    return right.item() / len(order)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
