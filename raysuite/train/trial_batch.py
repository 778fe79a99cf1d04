"""Pass one batch through the network of each plan, forward and backward, before any run starts.

    python -m raysuite.train.trial_batch FILE < plans.json

writes one line per plan into FILE: a JSON list of the plan's mistakes, as [key, message]. It runs
in a separate process because it imports torch and the user's module, which may end the process.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysuite import models
from raysuite.data import Split, prepare
from raysuite.data.base import Batch, Slice
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.reading import read, shown
from raysuite.errors import Mistake, SpecError, UserError, some, unmatched
from raysuite.measure.peak_memory import available_bytes
from raysuite.models.fine_tuning import load_weights
from raysuite.nested import called, leaves, mapped, unpadded
from raysuite.parallel import joined
from raysuite.parallel.base import World
from raysuite.parallel.precision import MEMORY_FORMATS
from raysuite.plan import RunPlan, placed
from raysuite.plan.dry_batch import distinct, unknown_model, unproven
from raysuite.spec import Document
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.strategies import Network, PipelineOptions, StrategyOptions, listed
from raysuite.spec.tasks import TaskOptions
from raysuite.tasks import Task, make_task
from raysuite.train.building import build_engine, draw, drawn
from raysuite.units import human_bytes

_LARGE = 2 * 10**7
"""Number of parameters above which a network is tried on the meta device first."""
_IMAGES = 2
"""Images per batch: the size of the smallest possible micro-batch, because raysuite.data.order pads
smaller micro-batches to two samples."""
_PASSES = 2
"""Number of passes through a network that draws no random numbers; two passes find layers that are
used only in every second step."""
_RANDOM_PASSES = 8
"""Number of passes through a network that draws random numbers and may choose its layers by these
numbers."""


_KEYS = ("model.weights", "task", "data.name")
"""Spec keys with which a message of `_network` may begin; all other messages are for
`model.name`."""

_STRIDES = (
    "; the images are in the memory format channels_last: use flatten or reshape instead of view, "
    "or set training.memory_format to contiguous"
)


def check(plans: Sequence[RunPlan], document: Document) -> None:
    """Try a batch for each plan that needs it, in this process.

    Raises SpecError with all mistakes, each with the document's file and line.
    """
    found = [
        placed(document, mistake, plan.label)
        for plan in distinct(unproven(plans))
        for mistake in mistakes(plan)
    ]
    if found:
        raise SpecError(found)


def mistakes(plan: RunPlan) -> list[Mistake]:
    """Reasons why this plan's network cannot be trained with its strategy, or why its images cannot
    be read.

    `raysuite.plan.dry_batch.distinct` lists the keys on which the result depends.
    """
    facts = plan.dataset
    size = _IMAGES * facts.image_values * torch.float.itemsize
    if size > (left := available_bytes(torch.device("cpu"))):
        message = (
            f"{_IMAGES} images of {facts.image_size} x {facts.image_size} pixels take "
            f"{human_bytes(size)}, but this host has only {human_bytes(left)} of free memory; "
            "lower the image size"
        )
        return [Mistake(message, key="data.image_size")]
    found = _network(
        plan.spec.model.model_dump_json(),
        plan.spec.task.model_dump_json(),
        plan.spec.data.model_dump_json(),
        plan.dataset,
        plan.memory_format,
    )
    decays = plan.spec.optimizer.weight_decay > 0
    if isinstance(found, str):
        key = next((key for key in _KEYS if found.startswith(f"{key}: ")), "model.name")
        wrong = {key: found.removeprefix(f"{key}: ")}
    else:
        wrong = _refused(plan.spec.strategy, replace(found, decays=decays))
        if found.scripted and plan.spec.training.ema_decay is not None:
            message = "a ScriptModule cannot be copied to average its weights; omit ema_decay"
            wrong["training.ema_decay"] = message
        for key, patterns in plan.spec.optimizer.patterns.items():
            if idle := unmatched(patterns, found.parameters):
                wrong[f"optimizer.{key}"] = idle
        if found.running and plan.spec.optimizer.averages:
            wrong["optimizer.name"] = (
                f"layers {some(found.running, 5)} compute running statistics with the training "
                f"weights, but with {plan.spec.optimizer.name} the averaged weights are validated; "
                "use adamw, or a network with GroupNorm or LayerNorm"
            )
        if found.complex and plan.spec.optimizer.real:
            wrong["optimizer.name"] = (
                f"{listed(found.complex)}: complex parameters, which the optimiser "
                f"{plan.spec.optimizer.name} cannot update; use sgd, lars, lamb or adamw, or a "
                "real parameter and torch.view_as_complex"
            )
        # a single process does not synchronise BatchNorm
        if found.synced and plan.device == "cpu" and plan.spec.strategy.gated:
            wrong["model.name"] = (
                f"layers {some(found.synced, 5)}: SyncBatchNorm, which torch supports only on "
                "GPUs; use BatchNorm, or set resources.device to gpu"
            )
        wrong = wrong or _untrained(plan)
        if staged := plan.spec.strategy.staged():
            wrong |= _uncut(plan, staged)
    read = plan.spec.loader.loads
    if read and (unread := _unread(plan.spec.data.model_dump_json(), plan.dataset)):
        wrong["data.name"] = unread
    return [Mistake(message, key=key) for key, message in wrong.items()]


def _uncut(plan: RunPlan, staged: PipelineOptions) -> dict[str, str]:
    """Key -> the reason why this plan's network cannot be divided into stages; empty if it can."""
    from raysuite.parallel.pipeline.blocks import blocks_of
    from raysuite.parallel.pipeline.partition import stage_sizes

    try:
        with torch.random.fork_rng(devices=[]):
            stage_sizes(staged, blocks_of(models.build(plan.spec.model, plan.dataset)))
    except UserError as error:
        key, _, message = str(error).partition(": ")
        return {key: message}
    return {}


def _untrained(plan: RunPlan) -> dict[str, str]:
    """Key -> the reason why one process on a CPU cannot take a step with the plan's strategy; empty
    if it can. The step is tried only for strategies that change the inputs or weights of layers."""
    tried = plan.spec.strategy.alone()
    if plan.device != "cpu" or tried is None:
        return {}
    options, key = tried
    inputs, targets = draw(plan, _IMAGES, torch.Generator().manual_seed(0))
    weight = int(make_task(plan.spec.task, plan.dataset).weight(targets))
    batch = Batch(inputs, targets, _IMAGES, weight)
    world = World.alone(torch.device("cpu"))
    with joined(options, world) as strategy:
        engine, *_ = build_engine(plan, world, strategy)
        names = [
            name
            for name, layer in engine.model.named_modules()
            if any(each.is_floating_point() for each in layer.buffers(recurse=False))
        ]
        try:
            engine.step([batch], 0.0)
        except Exception as error:  # the user's forward may raise any exception
            held = f"; layers {some(names, 3)} have buffers, which stay fp32" if names else ""
            message = (
                f"with this option a step on a CPU raised {type(error).__name__}: {error}{held}"
            )
            return {key: f"{message}; omit the option, or use layers without buffers (GroupNorm)"}
        finally:
            engine.close()
    return {}


@cache
def _network(
    model: str, task: str, data: str, facts: DatasetFacts, memory_format: str
) -> Network | str:
    """The network's properties, found by passes in training and in evaluation mode, or the reason
    why a pass failed.

    A large network is run on torch's meta device if possible, which takes no memory and little time
    except some seconds of imports.
    """
    options = ModelOptions.model_validate_json(model)
    aim = make_task(TaskOptions.model_validate_json(task), facts)
    try:
        with torch.device("meta"):
            built = models.build(options, facts)
            large = sum(each.numel() for each in built.parameters()) > _LARGE
            if large and options.weights is None:
                return examine(built, aim, memory_format, data)
    except (Exception, SystemExit):
        pass  # the pass with real tensors below reports the reason
    try:
        with torch.random.fork_rng(devices=[]):
            built = models.build(options, facts)
            if options.weights is not None:
                load_weights(built, Path(options.weights), facts)
            return examine(built, aim, memory_format, data)
    except UserError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # the user's forward may raise any exception
        shape = f"[{_IMAGES}, {facts.channels}, {facts.image_size}, {facts.image_size}]"
        given, keys = f"images of shape {shape} in fp32", "data.image_size or data.channels"
        if facts.inputs:
            given, keys = f"inputs {facts.inputs}", "the data set"
        elif facts.sequence:
            given, keys = f"tokens of shape [{_IMAGES}, {facts.sequence}]", "data.sequence"
        return (
            f"given {given}, it raised {type(error).__name__}: {error}; correct the network, or "
            f"change {keys}" + (_STRIDES if memory_format == "channels_last" else "")
        )


def examine(
    model: nn.Module, task: Task, memory_format: str = "contiguous", data: str = ""
) -> Network:
    """Find a model's properties by passing random samples through it or, if the task cannot draw
    samples, training samples of `data` (DataOptions as JSON). Raises UserError, and any exception
    of the model's code."""
    strides = MEMORY_FORMATS[memory_format]
    model.to(memory_format=strides)
    named = dict(model.named_parameters())
    trained = {name: each for name, each in named.items() if each.requires_grad}
    if not trained:
        raise UserError(
            "all of its parameters are frozen: nothing would be trained; leave requires_grad "
            "True for some parameters"
        )
    odd = [n for n, each in named.items() if each.is_floating_point() and each.dtype != torch.float]
    if odd:
        raise UserError(
            f"{listed(odd)}: {str(named[odd[0]].dtype).removeprefix('torch.')}, but weights and "
            "inputs must be float32; remove .double(), .half() and similar calls: for 16 bits, "
            "set training.precision"
        )
    device = next(iter(trained.values())).device
    generator = torch.Generator().manual_seed(0)

    def moved() -> tuple[Any, Any]:
        samples = drawn(task, data, _IMAGES, generator)
        inputs, targets = mapped(samples, lambda each: each.to(device))
        return mapped(inputs, lambda each: each.contiguous(memory_format=strides)), targets

    with_gradient = []
    sparse: set[str] = set()
    model.train()
    for number in range(_RANDOM_PASSES):
        (inputs, targets), before = moved(), _drawn()
        model.zero_grad()
        output = called(model, inputs)
        task.check(output, targets)
        loss = _loss(task, unpadded(output, _IMAGES), targets)
        if not loss.requires_grad:
            raise UserError(
                "its output does not depend on any parameter that is trained; look for .detach(), "
                "torch.no_grad() or argmax in forward"
            )
        loss.backward()
        gradients = {name: each.grad for name, each in trained.items() if each.grad is not None}
        with_gradient.append(set(gradients))
        sparse |= {name for name, each in gradients.items() if each.is_sparse}
        if number + 1 >= _PASSES and _drawn() == before:
            break
    model.eval()
    with torch.no_grad():
        inputs, targets = moved()
        task.check(called(model, inputs), targets)
    ever, always = set.union(*with_gradient), set.intersection(*with_gradient)
    return Network(
        parameters=tuple(named),
        frozen=tuple(name for name in named if name not in trained),
        unused=tuple(name for name in trained if name not in ever),
        sometimes=tuple(name for name in trained if name in ever - always),
        sparse=tuple(sorted(sparse)),
        scalar=tuple(name for name, each in named.items() if each.dim() == 0),
        empty=tuple(name for name, each in named.items() if each.numel() == 0),
        complex=tuple(name for name, each in named.items() if each.is_complex()),
        hooked=tuple(name for name, each in named.items() if each._backward_hooks),
        scripted=any(isinstance(each, torch.jit.ScriptModule) for each in model.modules()),
        synced=tuple(n for n, m in model.named_modules() if isinstance(m, nn.SyncBatchNorm)),
        running=tuple(
            n for n, m in model.named_modules() if getattr(m, "running_mean", None) is not None
        ),
    )


def _loss(task: Task, output: Any, targets: Any) -> Tensor:
    """The summed loss of a batch, after the check that its weight and metrics can be computed.

    Raises UserError if targets are not finite, or if the loss, the weight or a metric raises an
    exception or has a wrong value.
    """
    for each in leaves(targets):
        if isinstance(each, Tensor) and not each.is_meta and not each.isfinite().all():
            raise UserError(
                "data.name: the targets contain NaN or infinity; leave such samples out"
            )
    name = type(task).__name__
    try:
        loss, weight = task.loss(output, targets), float(task.weight(targets))
        with torch.no_grad():
            sums = [each.sums(output, targets) if each.sums else None for each in task.metrics]
    except Exception as error:  # the user's own task may raise any exception
        raise UserError(
            f"task: {name}, given the network's output, raised {type(error).__name__}: {error}; "
            "correct the task, the network or the targets"
        ) from error
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        what = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(
            f"task: the loss of {name} has to be the summed loss, a floating-point tensor of shape "
            f"[]; got {what}"
        )
    for metric, found in zip(task.metrics, sums, strict=True):
        if metric.sums and not (isinstance(found, Tensor) and found.dim() == 1):
            raise UserError(
                f"task: the sums of {name}'s metric {metric.name} are {found!r}; expected a "
                "tensor of one dimension, such as `.sum().reshape(1)`"
            )
    if not weight >= 0:
        raise UserError(f"task: the weight of {name} is {weight}; expected 0 or more")
    return loss


def _drawn() -> tuple[Any, ...]:
    """The states of the random generators that a network may use."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), str(np.random.get_state())


def _refused(strategy: StrategyOptions, network: Network) -> dict[str, str]:
    """The properties of this network that its strategy does not support: key -> message."""
    found = {}
    if network.sparse:
        found["model.name"] = (
            f"{listed(network.sparse)}: sparse gradients, which not all strategies average in the "
            "same way; set sparse=False in the layer"
        )
    return found | dict(strategy.network_refusals(network))


@cache
def _unread(data: str, facts: DatasetFacts) -> str:
    """The reason why the first image of a split cannot be read; empty if the first images of both
    splits can be read."""
    options = DataOptions.model_validate_json(data)
    if options.name == "digits":  # made from scikit-learn's data
        return ""
    try:
        prepared = prepare(options, facts)
        splits: tuple[Split, ...] = ("train", "val")
        for split in splits:
            with closing(open_source(prepared, split)) as source:
                if isinstance(source, TensorSource):
                    source.batch([0])
                    continue
                first = Slice(np.zeros(1, np.int64), 1, 1)
                shown(source, prepared, first, read(source, prepared, first))
    except UserError as error:
        return "" if options.bad_samples == "skip" else str(error)
    return ""


def main(file: Path, batches: bool = True) -> None:
    """Check the plans on standard input, in order. Without `batches`, check only whether their
    networks can be imported."""
    sys.path.append(os.getcwd())  # as `raysuite` does, to find the user's own modules
    plans = [RunPlan.model_validate(plan) for plan in json.load(sys.stdin)]
    with file.open("w", encoding="utf-8") as lines:
        for plan in plans:
            found = mistakes(plan) if batches else unknown_model(plan.spec)
            print(json.dumps([[m.key, m.message] for m in found]), file=lines, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--imports" not in sys.argv[2:])
