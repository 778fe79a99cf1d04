"""The same run with fewer workers, for the nodes that are left."""

from __future__ import annotations

import math
from typing import Any

from raysuite.plan.feasible import accumulation, infeasible
from raysuite.plan.resolve import resolve
from raysuite.plan.run_plan import RunPlan
from raysuite.spec import ExperimentSpec


def smaller(plan: RunPlan, most: int, gpus: int, index: int) -> RunPlan | None:
    """`plan` with the most workers of at most `most` that its options allow; None without any.

    The global batch stays, and no micro-batch grows: where a worker's share of the batch would not
    fit, it is accumulated. `index` is the new run's place in the order of execution, `gpus` the
    number of GPUs of the cluster.
    """
    resources = plan.spec.resources
    for workers in range(min(most, plan.workers - 1), resources.min_workers - 1, -1):
        spec = _with(plan, workers)
        if spec is None or infeasible(spec, gpus):
            continue
        label = {**plan.label, "resources.elastic_of": spec.resources.elastic_of}
        if "resources.workers" in label:
            label["resources.workers"] = workers
        return resolve(spec, label, plan.dataset, plan.repeat, index, gpus)
    return None


def _with(plan: RunPlan, workers: int) -> ExperimentSpec | None:
    """The spec for so many workers, or None where they do not divide the batch."""
    spec, batch = plan.spec, plan.global_batch
    fewest = math.ceil(batch / (workers * plan.micro_batch))
    rounds = (n for n in range(fewest, batch // workers + 1) if batch % (workers * n) == 0)
    accumulate = next(rounds, None)
    if accumulate is None:
        return None
    first = spec.resources.elastic_of or plan.workers
    resources = {"workers": workers, "device": plan.device, "elastic_of": first}
    training: dict[str, Any] = {"global_batch": batch, "batch_per_worker": None}
    strategy = spec.strategy
    if strategy.own_accumulation is not None:
        training["accumulate"] = 1
        _, _, key = strategy.own_accumulation_key.rpartition(".")
        strategy = strategy.model_copy(update={key: accumulate})
    else:
        training["accumulate"] = accumulate
    changed = spec.model_copy(
        update={
            "resources": spec.resources.model_copy(update=resources),
            "training": spec.training.model_copy(update=training),
            "strategy": strategy,
        }
    )
    assert accumulation(changed) == accumulate
    return changed
