"""Specs -> RunPlans: every number of every run, and whether it can be run at all."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from raysuite.errors import Mistake, SpecError
from raysuite.plan.matrix import expand
from raysuite.plan.run_plan import RunPlan
from raysuite.spec import Document, ExperimentSpec
from raysuite.spec.names import DIGITS, DatasetFacts, MODELS, CIFAR_RESNETS

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")


def make_plans(document: Document, gpus: int | None = None) -> list[RunPlan]:
    """Every run of a document, in the order of execution.

    `gpus` is the number of GPUs of the cluster; None looks at this machine. Repeats vary
    slowest, so that a drift of the machine meets all variants alike; within a repeat, runs of
    one world size and one kind of worker stand together and can share warm workers.

    Raises SpecError with everything that makes a run infeasible.
    """
    gpus = local_gpus() if gpus is None else gpus
    variants = expand(document)
    repeats = variants[0][1].repeats
    ordered = sorted(variants, key=lambda variant: _group(variant[1]))
    plans: list[RunPlan] = []
    mistakes: list[Mistake] = []
    for repeat in range(repeats):
        for label, spec in ordered:
            found = infeasible(spec, gpus)
            if found:
                mistakes += [_placed(document, mistake, label) for mistake in found]
                continue
            plans.append(_resolve(spec, label, repeat, len(plans), gpus))
    if mistakes:
        raise SpecError(list(dict.fromkeys(mistakes)))
    return plans


def _group(spec: ExperimentSpec) -> tuple[int, int]:
    return (spec.resources.workers, spec.strategy.name == "horovod")


def local_gpus() -> int:
    """NVIDIA GPUs of this machine, counted without loading any library."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def dataset_facts(spec: ExperimentSpec) -> DatasetFacts:
    """Counts and shapes of the spec's data set, from the table or from the folder's listing."""
    data = spec.data
    if data.name == "digits":
        base = DIGITS
    else:
        root = Path(data.path or "").expanduser()
        counts = {split: _count_images(root / split) for split in ("train", "val")}
        classes = sum(entry.is_dir() for entry in os.scandir(root / "train"))
        base = DatasetFacts(counts["train"], counts["val"], classes, 3, data.image_size or 0)
    return DatasetFacts(
        train_samples=base.train_samples,
        val_samples=base.val_samples,
        classes=base.classes,
        channels=data.channels or base.channels,
        image_size=data.image_size or base.image_size,
    )


def _count_images(folder: Path) -> int:
    return sum(
        name.lower().endswith(IMAGE_SUFFIXES)
        for _, _, names in os.walk(folder)
        for name in names
    )


def accumulation(spec: ExperimentSpec) -> int:
    """Micro-batches per optimiser step; Horovod's own name for it counts too."""
    if spec.strategy.name == "horovod" and spec.strategy.backward_passes_per_step is not None:
        return spec.strategy.backward_passes_per_step
    return spec.training.accumulate


def infeasible(spec: ExperimentSpec, gpus: int) -> list[Mistake]:
    """Why this run cannot be: one Mistake for each reason, with the key to change."""
    mistakes = []

    def wrong(key: str, message: str) -> None:
        mistakes.append(Mistake(message, key=key))

    training, strategy, workers = spec.training, spec.strategy, spec.resources.workers
    if strategy.name == "single" and workers != 1:
        wrong("resources.workers", f"strategy 'single' is one process; given were {workers} workers")
    if strategy.name == "horovod":
        passes = strategy.backward_passes_per_step
        if passes is not None and training.accumulate not in (1, passes):
            wrong(
                "strategy.backward_passes_per_step",
                f"given was {passes}, and training.accumulate is {training.accumulate}: "
                "they are one thing; give one of them",
            )
    if strategy.name == "deepspeed":
        needed = {"none": 0, "optimizer": 1, "parameters": 3}[strategy.offload]
        if strategy.zero_stage < needed:
            wrong(
                "strategy.offload",
                f"offloading the {strategy.offload} needs zero_stage {needed} or more; "
                f"given was {strategy.zero_stage}",
            )
    slices = workers * accumulation(spec)
    if training.global_batch is not None and training.global_batch % slices:
        near = max(1, round(training.global_batch / slices)) * slices
        wrong(
            "training.global_batch",
            f"given was {training.global_batch}, which {workers} workers x {accumulation(spec)} "
            f"micro-batches do not divide; {near} would do",
        )
    if training.batch_per_worker is not None and training.batch_per_worker % accumulation(spec):
        wrong(
            "training.batch_per_worker",
            f"given was {training.batch_per_worker}, which {accumulation(spec)} micro-batches "
            "do not divide",
        )
    if spec.resources.device == "gpu" and gpus < workers:
        wrong("resources.device", f"{workers} workers need {workers} GPUs; there are {gpus}")
    if spec.resources.device == "cpu" and spec.loader.name == "dali" and spec.loader.device == "gpu":
        wrong("loader.device", "DALI's gpu pipeline needs resources.device gpu")
    if ":" not in spec.model.name and spec.model.name not in CIFAR_RESNETS:
        channels = spec.data.channels or (1 if spec.data.name == "digits" else 3)
        if spec.model.name in MODELS and channels != 3:
            wrong(
                "data.channels",
                f"torchvision's {spec.model.name} takes RGB images, and {spec.data.name} has "
                f"{channels} channel; set data.channels to 3",
            )
    mistakes += _data_mistakes(spec)
    return mistakes


def _data_mistakes(spec: ExperimentSpec) -> list[Mistake]:
    if spec.data.path is None:
        return []
    root = Path(spec.data.path).expanduser()
    layout = "expected is PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or .jpg)"
    missing = [str(folder) for folder in (root / "train", root / "val") if not folder.is_dir()]
    if not root.is_dir():
        missing = [str(root)]
    if missing:
        text = f"no folder {' and no folder '.join(missing)}; {layout}"
        return [Mistake(text, key="data.path")]
    empty = [split for split in ("train", "val") if _count_images(root / split) == 0]
    if empty:
        return [Mistake(f"no images in {' and '.join(empty)} of {root}; {layout}", key="data.path")]
    return []


def _placed(document: Document, mistake: Mistake, label: dict[str, Any]) -> Mistake:
    path = tuple(mistake.key.split("."))
    for end in range(len(path), 0, -1):
        key = ".".join(path[:end])
        if key in label:
            values = document.data["matrix"][key]
            file, line = document.place(("matrix", key, values.index(label[key])))
            break
    else:
        file, line = document.place(path)
    return Mistake(mistake.message, key=mistake.key, file=file, line=line)


def _resolve(
    spec: ExperimentSpec, label: dict[str, Any], repeat: int, index: int, gpus: int
) -> RunPlan:
    training, workers = spec.training, spec.resources.workers
    global_batch = training.global_batch or (training.batch_per_worker or 0) * workers
    accumulate = accumulation(spec)
    facts = dataset_facts(spec)
    steps = math.ceil(facts.train_samples / global_batch)
    reference = spec.optimizer.lr_reference_batch
    scale = global_batch / reference if reference else 1.0
    device: Literal["cpu", "gpu"] = "gpu" if gpus >= workers else "cpu"
    if spec.resources.device != "auto":
        device = spec.resources.device
    own = spec.model_copy(update={"matrix": {}, "repeats": 1, "seed": spec.seed + repeat})
    return RunPlan(
        run_id=_run_id(own, label, repeat, index),
        index=index,
        repeat=repeat,
        seed=spec.seed + repeat,
        label=label,
        spec=own,
        dataset=facts,
        workers=workers,
        device=device,
        global_batch=global_batch,
        micro_batch=global_batch // (workers * accumulate),
        accumulate=accumulate,
        steps_per_epoch=steps,
        total_steps=steps * training.epochs,
        peak_lr=spec.optimizer.lr * scale,
    )


def _run_id(spec: ExperimentSpec, label: dict[str, Any], repeat: int, index: int) -> str:
    content = json.dumps([spec.model_dump(mode="json"), repeat], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    name = f"{spec.strategy.name}-{spec.loader.name}-w{spec.resources.workers}"
    return f"{index:03d}-{re.sub(r'[^A-Za-z0-9-]', '-', name)}-{digest}"


def groups(plans: Sequence[RunPlan]) -> list[list[RunPlan]]:
    """Neighbouring runs that can share workers: same kind of worker, world size and resources."""
    result: list[list[RunPlan]] = []
    for plan in plans:
        if result and not plan.spec.resources.fresh_workers and _alike(result[-1][-1], plan):
            result[-1].append(plan)
        else:
            result.append([plan])
    return result


def _alike(left: RunPlan, right: RunPlan) -> bool:
    return (
        left.backend == right.backend
        and left.device == right.device
        and left.spec.resources == right.spec.resources
        and _horovod_environment(left) == _horovod_environment(right)
    )


def _horovod_environment(plan: RunPlan) -> tuple[float, float] | None:
    strategy = plan.spec.strategy
    if strategy.name != "horovod":
        return None
    return (strategy.fusion_threshold_mb, strategy.cycle_time_ms)
