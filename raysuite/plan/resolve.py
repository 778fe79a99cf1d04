"""Make RunPlans from specs: compute every number of every run."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from raysuite.errors import Mistake, SpecError, UserError
from raysuite.plan.dataset import Datasets, dataset_facts, dataset_mistakes
from raysuite.plan.feasible import (
    accumulation,
    device_of,
    global_batch_of,
    infeasible,
)
from raysuite.plan.matrix import Variant, expand, located, swept_at
from raysuite.plan.run_plan import RunPlan
from raysuite.records.names import script_name
from raysuite.spec import Document, ExperimentSpec
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.resources import gpus_in
from raysuite.spec.tasks import CLASSIFICATION, SCRIPT, TaskFacts

NO_FACTS = DatasetFacts(train_samples=1, val_samples=0, classes=1, channels=1, image_size=1)
"""Placeholder for the facts about a script's data, which are unknown: an epoch has one step."""


def make_plans(
    document: Document, gpus: int | None = None, *, elsewhere: bool = False
) -> list[RunPlan]:
    """Every run of a document, in the order of execution.

    `gpus` is the number of GPUs of the cluster; None: of this machine. `elsewhere`: whether the
    runs will be on another machine; if so, a named data set that is missing here is assumed to have
    its official numbers of samples and classes. Repeats vary slowest, so that a drift of the
    machine affects all variants equally. Within a repeat, runs with equal world size and equal
    worker settings are adjacent, and can share worker processes.

    Raises SpecError with everything that makes a run infeasible.
    """
    gpus = local_gpus() if gpus is None else gpus
    variants = sorted(((_sharing(each), each) for each in expand(document)), key=itemgetter(0))
    blocks = [[v for _, v in block] for _, block in itertools.groupby(variants, itemgetter(0))]
    seen = Datasets(elsewhere)
    mistakes: list[Mistake] = []
    for _, (label, spec) in variants:
        found = infeasible(spec, gpus)
        if spec.script is None:
            found += dataset_mistakes(spec, seen)
            found += task_mistakes(spec, None if found else dataset_facts(spec, seen))
        mistakes += [placed(document, mistake, label) for mistake in found]
    if mistakes:
        raise SpecError(mistakes)
    plans: list[RunPlan] = []
    for repeat in range(blocks[0][0][1].repeats):
        for label, spec in _in_round(blocks, repeat):
            facts = dataset_facts(spec, seen) if spec.script is None else NO_FACTS
            own = spec.model_copy(update={"matrix": {}, "repeats": 1, "seed": spec.seed + repeat})
            plans.append(resolve(own, label, facts, repeat, len(plans), gpus))
    return plans


def _with_loader(
    spec: ExperimentSpec, label: dict[str, Any], facts: DatasetFacts
) -> tuple[ExperimentSpec, dict[str, Any]]:
    """The spec and the run's matrix keys, with `loader: auto` resolved for this data set."""
    loader = spec.loader.chosen(spec.data, facts)
    if loader is spec.loader:
        return spec, label
    block = loader.model_dump(exclude_defaults=True) | {"name": loader.name}
    stated = label | ({"loader": block} if "loader" in label else {})
    return spec.model_copy(update={"loader": loader}), stated


def _in_round(blocks: list[list[Variant]], repeat: int) -> list[Variant]:
    """The variants in their order in a repeat. After every second repeat the order is rotated by
    one, and in odd repeats it is reversed, so that no variant always follows the same variant. Runs
    that share workers (a block) stay adjacent."""

    def turned(items: list[Any]) -> list[Any]:
        start = repeat // 2 % len(items)
        order = items[start:] + items[:start]
        return order[::-1] if repeat % 2 else order

    return [variant for block in turned(blocks) for variant in turned(block)]


def _sharing(variant: Variant) -> tuple[Any, ...]:
    """A sort key: small world sizes come first, and runs that can share workers are adjacent."""
    spec = variant[1]
    settings = spec.strategy.process_settings
    resources = json.dumps(spec.resources.model_dump(), sort_keys=True)
    return (spec.resources.workers, settings is not None, resources, settings or ())


def local_gpus() -> int:
    """Number of NVIDIA GPUs here that CUDA may use, counted without loading any library."""
    present = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, gpus_in(visible))


def placed(document: Document, mistake: Mistake, label: dict[str, Any]) -> Mistake:
    """The mistake with the file and line of its key. If `label` has the key, file and line are
    those of its value in the matrix."""
    return located(document, mistake, lambda key: swept_at(document, label, key))


def resolve(
    spec: ExperimentSpec,
    label: dict[str, Any],
    facts: DatasetFacts,
    repeat: int,
    index: int,
    gpus: int,
) -> RunPlan:
    """Compute the numbers of one run; `spec` has the run's own seed and no matrix.

    If trials will find the batch size, the numbers are those of the smallest candidate.
    """
    spec, label = _with_loader(spec, label, facts)
    training, workers = spec.training, spec.resources.workers
    accumulate, global_batch = accumulation(spec), global_batch_of(spec)
    steps = math.ceil(facts.train_samples / global_batch)
    device, memory_format = device_of(spec, gpus), training.memory_format
    if memory_format == "auto":
        short = training.precision != "fp32" and spec.task.classifies
        memory_format = "channels_last" if short and device == "gpu" else "contiguous"
    return RunPlan(
        run_id=_run_id(spec, repeat, index),
        index=index,
        repeat=repeat,
        seed=spec.seed,
        label=label,
        spec=spec,
        dataset=facts,
        task=task_facts(spec),
        workers=workers,
        device=device,
        global_batch=global_batch,
        micro_batch=global_batch // (workers // spec.strategy.model_workers * accumulate),
        accumulate=accumulate,
        steps_per_epoch=steps,
        total_steps=steps * training.epochs,
        peak_lr=spec.optimizer.peak_lr(global_batch),
        memory_format=memory_format,
    )


def task_facts(spec: ExperimentSpec) -> TaskFacts:
    """The declarations of the spec's task. Raises UserError if the task cannot be imported, or if
    its declarations are incomplete."""
    if spec.script is not None:
        return SCRIPT
    if spec.task.classifies:
        return CLASSIFICATION
    from raysuite.tasks import facts_of

    return facts_of(spec.task)


def task_mistakes(spec: ExperimentSpec, facts: DatasetFacts | None) -> list[Mistake]:
    """Mistakes if the spec's task cannot be imported, cannot be constructed for a data set with
    these facts (checked only if `facts` is given), or lacks the metric of early stopping."""
    try:
        task = task_facts(spec)
        if facts is not None and not spec.task.classifies:
            from raysuite.tasks import make_task

            make_task(spec.task, facts)
    except UserError as error:
        return [Mistake(str(error), key="task")]
    early, valid = spec.training.early_stopping, ["val_loss", f"val_{task.primary}"]
    if early is None or early.metric in valid:
        return []
    message = f"got {early.metric}; valid for the task {task.name} are {' and '.join(valid)}"
    return [Mistake(message, key="training.early_stopping.metric")]


def with_keys(spec: ExperimentSpec, changed: dict[str, Any]) -> ExperimentSpec:
    """The spec with the dotted keys of `changed` set to their values, without validation."""
    for key, value in changed.items():
        block, _, name = key.partition(".")
        own = getattr(spec, block).model_copy(update={name: value})
        spec = spec.model_copy(update={block: own})
    return spec


def _run_id(spec: ExperimentSpec, repeat: int, index: int) -> str:
    content = json.dumps([spec.model_dump(mode="json", exclude={"track"}), repeat], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    name = f"{spec.strategy.name}-{spec.loader.name}-w{spec.resources.workers}"
    if spec.script is not None:
        script = script_name({"spec": spec.model_dump(include={"script"})})
        name = f"{script}-w{spec.resources.workers}"
    return f"{index:03d}-{re.sub(r'[^A-Za-z0-9-]', '-', name)}-{digest}"


def groups(plans: Sequence[RunPlan], one_node: bool = True) -> list[list[RunPlan]]:
    """Groups of consecutive runs that share workers.

    A group has as many workers as its largest run needs. A smaller run uses the first ranks, and
    the other ranks wait. On several nodes only runs of equal size share workers: the first ranks of
    a large world are placed differently from the ranks of a small world.
    """
    result: list[list[RunPlan]] = []
    last: Any = None
    settings = given = shared = None
    for plan in plans:
        resources, own = plan.spec.resources, plan.spec.strategy.process_settings
        if resources != given:
            given = resources
            shared = resources.model_copy(update={"workers": 1}) if one_node else resources
        needs = None if _stands_apart(plan) else (plan.device, shared)
        alike = needs is not None and needs == last
        if alike and (own is None or settings is None or own == settings):
            result[-1].append(plan)
            settings = own if settings is None else settings
        else:
            result.append([plan])
            last, settings = needs, own
    return result


def _stands_apart(plan: RunPlan) -> bool:
    """Whether a run must not share workers, because sharing would falsify its own measurements or
    those of the next run. For a script, only `fresh_workers` matters, because each run of a script
    has processes of its own."""
    if plan.spec.script is not None:
        return plan.spec.resources.fresh_workers
    return (
        plan.spec.resources.fresh_workers
        # a profiler slows down later runs; nsys profiles a process, not a run
        or plan.spec.measure.profile != "off"
        or plan.spec.strategy.own_processes
    )


# The same run with fewer workers, for the remaining nodes.


def smaller(plan: RunPlan, most: int, gpus: int, index: int) -> RunPlan | None:
    """`plan` with fewer workers: with the largest number, from `min_workers` to `most`, with which
    the run is feasible. None if there is no such number.

    The global batch is kept, and micro-batches do not grow: a worker whose share is larger than a
    micro-batch accumulates gradients. `index` is the new run's position in the order of execution,
    and `gpus` the number of GPUs of the cluster.
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
    """The spec with this number of workers; None if no number of micro-batches divides the global
    batch equally among them."""
    spec, batch = plan.spec, plan.global_batch
    fewest = math.ceil(batch / (workers * plan.micro_batch))
    rounds = (n for n in range(fewest, batch // workers + 1) if batch % (workers * n) == 0)
    accumulate = next(rounds, None)
    if accumulate is None:
        return None
    changed = with_keys(
        spec,
        {
            "resources.workers": workers,
            "resources.device": plan.device,
            "resources.elastic_of": spec.resources.elastic_of or plan.workers,
            "training.global_batch": batch,
            "training.batch_per_worker": None,
            "training.accumulate": accumulate,
        },
    )
    assert accumulation(changed) == accumulate, "elastic strategies do not set accumulation"
    return changed
