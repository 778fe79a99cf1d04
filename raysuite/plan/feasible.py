"""Check whether a run is feasible, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Literal

from raysuite.errors import Mistake
from raysuite.spec import ExperimentSpec
from raysuite.spec.base import suggest
from raysuite.spec.batches import AutoBatch
from raysuite.spec.datasets import KNOWN, TOKENS
from raysuite.spec.loaders import LOADER_OPTIONS
from raysuite.spec.script import ScriptOptions, numbers_of
from raysuite.spec.stems import misfit
from raysuite.spec.strategies import STRATEGY_OPTIONS

_Wrong = Callable[[str, str], None]


def accumulation(spec: ExperimentSpec) -> int:
    """Micro-batches per optimiser step, set by `training.accumulate` or by the strategy's own
    option; 1 if trials will find the number.
    """
    if spec.strategy.own_accumulation is not None:
        return spec.strategy.own_accumulation
    given = spec.training.accumulate
    return 1 if isinstance(given, AutoBatch) else given


def global_batch_of(spec: ExperimentSpec) -> int:
    """Samples of one optimiser step over all workers; with the smallest candidate if trials will
    find the batch size."""
    share = spec.training.batch_per_worker
    each = accumulation(spec) if isinstance(share, AutoBatch) else share or 0
    return spec.training.global_batch or each * spec.resources.workers


def device_of(spec: ExperimentSpec, gpus: int) -> Literal["cpu", "gpu"]:
    """The device of a run; `auto` means GPUs if there is at least one GPU for each worker."""
    if spec.resources.device != "auto":
        return spec.resources.device
    return "gpu" if gpus >= spec.resources.workers else "cpu"


def infeasible(spec: ExperimentSpec, gpus: int) -> list[Mistake]:
    """Why this run is infeasible: one Mistake for each reason, with the key to change."""
    mistakes: list[Mistake] = []

    def wrong(key: str, message: str) -> None:
        mistakes.append(Mistake(message, key=key))

    if spec.script is not None:
        _check_script(spec, spec.script, wrong)
        _check_devices(spec, gpus, wrong)
        return mistakes
    _check_task(spec, wrong)
    _check_strategy(spec, wrong)
    _check_training(spec, wrong)
    _check_devices(spec, gpus, wrong)
    _check_model(spec, wrong)
    _check_figures(spec, wrong)
    return mistakes


_OF_CLASSES = {
    "label_smoothing": 0.0,
    "class_weights": None,
    "sampler": "shuffled",
    "target_accuracy": None,
}
"""Keys of `training` that apply only to classification, with their defaults."""


def _check_task(spec: ExperimentSpec, wrong: _Wrong) -> None:
    """Check that task, data set and loader fit together."""
    task, data = spec.task, spec.data
    if task.classifies:
        if data.of_tokens:
            wrong("task", f"the samples of {data.name} are tokens; set task to language_model")
        if data.own and data.image_size is None:
            wrong("data", f"{data.name} needs `image_size`")
        if spec.training.target is not None:
            wrong("training.target", "for classification, set training.target_accuracy instead")
        return
    if data.own:
        for key in data.of_images:
            if key == "augment":  # checked later, with the first sample: it may have a mask
                continue
            wrong(
                f"data.{key}",
                f"the key is for images with one class each; for the task {task.name}, samples are "
                "passed to the network unchanged; leave it out",
            )
    if not (data.of_tokens or data.own):
        wrong(
            "data.name",
            f"got {data.name}, whose images have one class each, for task {task.name}; valid: "
            f"{', '.join(TOKENS)}, or your own data set as 'module:attribute'",
        )
    if not spec.loader.tensors:
        able = [name for name, each in LOADER_OPTIONS.items() if each.tensors]
        wrong(
            "loader.name",
            f"got {spec.loader.name}, which loads images with one class each; valid for the "
            f"task {task.name}: {', '.join(able)}",
        )
    if data.bad_samples != "error":
        wrong("data.bad_samples", "the value skip is for images only; leave the key out")
    if spec.training.memory_format == "channels_last":
        message = "the value channels_last is for images only; leave the key out"
        wrong("training.memory_format", message)
    for key, default in _OF_CLASSES.items():
        if getattr(spec.training, key) != default:
            message = f"the key is for classification, and the task is {task.name}; leave it out"
            wrong(f"training.{key}", message)


def _check_script(spec: ExperimentSpec, script: ScriptOptions, wrong: _Wrong) -> None:
    names = numbers_of(spec.resources.workers)
    for key, compute in (
        ("script.command", script.words),
        ("script.environment", script.variables),
        ("script.samples_per_step", script.samples),
    ):
        try:
            compute(names)
        except ValueError as error:
            wrong(key, str(error))
    file = Path(script.command[0])
    if script.command[0] != "-m" and not file.is_file():
        why = "is a folder" if file.is_dir() else "is not there"
        wrong(
            "script.command",
            f"the script {file} {why}; give the path of a Python file, relative to the folder in "
            "which you call raysuite",
        )
    if spec.measure.profile == "nsight":
        message = "got nsight, but scripts can be profiled only by torch; valid: off and torch"
        wrong("measure.profile", message)
    if spec.measure.figures:
        message = f"got {', '.join(spec.measure.figures)}, which cannot be measured in a script"
        wrong("measure.figures", f"{message}; leave it out")
    if spec.resources.elastic:
        message = "got true, but the batch size of a script cannot be adapted to fewer workers"
        wrong("resources.elastic", f"{message}; leave it out")


def _check_strategy(spec: ExperimentSpec, wrong: _Wrong) -> None:
    training, strategy, workers = spec.training, spec.strategy, spec.resources.workers
    passes = strategy.own_accumulation
    if passes is not None and training.accumulate not in (1, passes):
        wrong(
            strategy.own_accumulation_key,
            f"got {passes}, and training.accumulate is {training.accumulate}: "
            "both set the number of micro-batches; give only one of them",
        )
    if workers % strategy.model_workers:
        wrong(
            "resources.workers",
            f"strategy {strategy.name!r} divides each copy of the network among "
            f"{strategy.model_workers} workers; got {workers}; set workers to "
            f"{strategy.model_workers} or a multiple of it",
        )
    if strategy.model_workers > 1 and training.auto is not None:
        wrong(
            "training.batch_per_worker",
            f"with strategy {strategy.name!r}, trials cannot find the global batch size, only the "
            "number of micro-batches for a given global batch size: set "
            f"{strategy.own_accumulation_key}: auto",
        )
    for key, allowed in strategy.only.items():
        given = attrgetter(key)(spec)
        if given not in allowed:
            valid = " or ".join(map(str, allowed))
            wrong(
                key,
                f"strategy {strategy.name!r} does not support this yet; got {given}; "
                f"valid: {valid}",
            )
    for refused in strategy.refusals(spec):
        wrong(*refused)
    if spec.data.transform is not None and not spec.loader.transforms:
        able = [name for name, each in LOADER_OPTIONS.items() if each.transforms]
        wrong(
            "loader.name",
            f"got {spec.loader.name}, which does not call Python for each image, and "
            f"data.transform is {spec.data.transform}; valid: {', '.join(able)}",
        )
    if not spec.loader.loads:
        for key in ("class_weights", "sampler"):
            if getattr(training, key) not in (None, "shuffled"):
                wrong(
                    "loader.name",
                    f"{spec.loader.name} draws labels at random, and training.{key} needs those of "
                    f"the data set; choose another loader, or leave {key} out",
                )


def _check_training(spec: ExperimentSpec, wrong: _Wrong) -> None:
    if spec.optimizer.averages and spec.training.ema_decay is not None:
        name = spec.optimizer.name
        message = f"optimizer {name} averages the weights itself; leave ema_decay out"
        wrong("training.ema_decay", message)
    if spec.training.sampler == "balanced" and spec.training.class_weights == "auto":
        wrong(
            "training.class_weights",
            "got auto, and training.sampler is balanced: each of the two gives classes of unequal "
            "size equal weight, and both together would favour rare classes; leave one of them out",
        )
    training, workers, accumulate = spec.training, spec.resources.workers, accumulation(spec)
    together = spec.strategy.model_workers
    copies = max(1, workers // together)
    slices = copies * accumulate
    shares = f"{copies} {'workers' if together == 1 else 'copies of the pipeline'}"
    if training.global_batch is not None and training.global_batch % slices:
        near = max(1, round(training.global_batch / slices)) * slices
        wrong(
            "training.global_batch",
            f"got {training.global_batch}, which is not divisible by {shares} x {accumulate} "
            f"micro-batches; give {near}",
        )
    share = training.batch_per_worker
    if isinstance(share, int) and share * together % accumulate:
        near = max(1, round(share / accumulate)) * accumulate
        wrong(
            "training.batch_per_worker",
            f"got {share}, which is not divisible by {accumulate} micro-batches; give {near}",
        )


def _check_devices(spec: ExperimentSpec, gpus: int, wrong: _Wrong) -> None:
    workers = spec.resources.workers
    if spec.resources.device == "gpu" and gpus < workers:
        wrong("resources.device", f"{workers} workers need {workers} GPUs; there are {gpus}")
    on_cpu = device_of(spec, gpus) == "cpu"
    if on_cpu and spec.loader.on_gpu:
        reason = (
            "resources.device is cpu"
            if spec.resources.device == "cpu"
            else f"there are {gpus} GPUs for {workers} workers"
        )
        message = f"the value gpu needs workers on GPUs, but {reason}; set loader.device to cpu"
        wrong("loader.device", message)
    if on_cpu and spec.measure.profile == "nsight":
        wrong(
            "measure.profile",
            "nsight profiles GPUs, and this run's workers have none; valid: off and torch",
        )


def _check_model(spec: ExperimentSpec, wrong: _Wrong) -> None:
    facts, data = KNOWN.get(spec.data.name), spec.data
    channels = data.channels or (facts.channels if facts else None if data.own else 3)
    channels = 0 if data.of_tokens else channels
    size = data.image_size or (facts.image_size if facts else None)
    reason = misfit(spec.model.name, spec.model.options, channels, size)
    if reason is not None:
        wrong(*reason)


def _check_figures(spec: ExperimentSpec, wrong: _Wrong) -> None:
    if not spec.measure.figures:
        return
    from raysuite.records.metrics import METRICS  # slow, and most specs do not need it

    known = [each.name for each in METRICS if each.on_request]
    for name in spec.measure.figures:
        if name not in known:
            wrong("measure.figures", f"got {name!r}; {suggest(name, known)}")
            continue
        able = [
            strategy
            for strategy, each in STRATEGY_OPTIONS.items()
            if each.figures is None or name in each.figures
        ]
        if spec.strategy.name not in able:
            wrong(
                "measure.figures",
                f"strategy {spec.strategy.name!r} cannot measure {name}; leave it out, or use "
                f"strategy {', '.join(able)}",
            )
