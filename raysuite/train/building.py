"""Build a plan's model and its strategy's engine, for training and for trials before training."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raysuite import lazy, models, optim
from raysuite.data import prepare
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.measure.topology import bind, bound_cpus, cpu_list, gpu_node, read_topology
from raysuite.models.fine_tuning import load_weights
from raysuite.nested import mapped
from raysuite.optim.average import WeightAverage
from raysuite.parallel.base import Criterion, Engine, StepSettings, Strategy, World
from raysuite.parallel.precision import MEMORY_FORMATS
from raysuite.plan import RunPlan
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.tasks import Task, make_task


def import_own(plan: RunPlan) -> None:
    """Import the user's modules. A module is imported once per process; changes that its import
    makes to the process are not undone at the end of a run. Raises UserError if a module cannot be
    imported."""
    models.check(plan.spec.model.name)
    data = plan.spec.data
    own = (
        data.name if data.own else None,
        data.transform,
        plan.spec.task.implementation,
        *plan.spec.strategy.imports.values(),
    )
    for target in filter(None, own):
        lazy.load(target)


def set_torch(plan: RunPlan) -> None:
    """Set torch's process-wide options."""
    torch.set_num_threads(plan.spec.resources.cpus_per_worker)
    torch.backends.cudnn.benchmark = plan.spec.training.cudnn_benchmark


def bind_worker(plan: RunPlan, world: World) -> str:
    """Bind this process to its share of the host's CPUs, and return the CPUs and their memory nodes
    as text; empty if the process is not bound. Raises UserError for CPUs that this host lacks."""
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    near = []
    if world.device.type == "cuda" and torch.cuda.device_count() >= workers:
        near = [gpu_node(_pci(index)) for index in range(workers)]
    topology = read_topology()
    binding = plan.spec.resources.binding
    cpus = bound_cpus(binding, world.local_rank, workers, near, topology)
    if not cpus:
        return ""
    bind(cpus)
    return f"{cpu_list(cpus)} (memory {cpu_list(topology.nodes_of(cpus))})"


def _pci(index: int) -> str:
    found: Any = torch.cuda.get_device_properties(index)  # torch's stubs lack these three
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def build_model(plan: RunPlan, world: World) -> nn.Module:
    """Build the plan's model on this rank's device, with equal weights on all ranks."""
    return _model(plan, world)[0]


def _model(plan: RunPlan, world: World) -> tuple[nn.Module, list[str]]:
    """The model, and the names of its tensors that `model.weights` left at their initial values."""
    torch.manual_seed(plan.seed)
    model = models.build(plan.spec.model, plan.dataset)
    file = plan.spec.model.weights
    not_loaded = [] if file is None else load_weights(model, Path(file), plan.dataset)
    model.to(memory_format=MEMORY_FORMATS[plan.memory_format])
    return model.to(world.device), not_loaded


def step_settings(plan: RunPlan) -> StepSettings:
    """The plan's settings for an optimiser step."""
    training, facts = plan.spec.training, plan.dataset
    return StepSettings(
        micro_batch=plan.micro_batch,
        accumulate=plan.accumulate,
        clip_norm=training.clip_norm,
        precision=training.precision,
        label_smoothing=training.label_smoothing,
        memory_format=plan.memory_format,
        image=(facts.channels, facts.image_size, facts.image_size),
        compile=training.compile,
        figures=plan.spec.measure.figures,
    )


def build_engine(
    plan: RunPlan, world: World, strategy: Strategy
) -> tuple[Engine, WeightAverage | None, list[str]]:
    """Return the strategy's engine, the average of its weights (None without `ema_decay`), and the
    names of the tensors that `model.weights` left at their initial values. All ranks must call
    it."""
    decay = plan.spec.training.ema_decay
    model, not_loaded = _model(plan, world)
    # a copy of the bare model: frameworks replace its weights, or add hooks to them
    average = WeightAverage(model, decay) if decay else None
    names: dict[Tensor, str] = {each: name for name, each in model.named_parameters()}
    engine = strategy.prepare(
        model,
        partial(optim.build_optimizer, plan.spec.optimizer, lr=plan.peak_lr, names=names),
        step_settings(plan),
    )
    engine.criterion = criterion_of(plan)
    engine.compiler.cold()
    return engine, average, not_loaded


def draw(plan: RunPlan, count: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Inputs and targets of `count` samples on the generator's device; see `drawn`."""
    task = make_task(plan.spec.task, plan.dataset)
    return drawn(task, plan.spec.data.model_dump_json(), count, generator)


def drawn(task: Task, data: str, count: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Random samples of a task, or randomly chosen training samples if the task cannot draw
    samples."""
    found = task.draw(count, generator)
    if found is not None:
        return found
    source, device = _training_samples(data, task.dataset), generator.device
    samples = task.dataset.train_samples
    ids = torch.randint(samples, (count,), generator=generator, device=device)
    inputs, targets = mapped(source.batch(ids.tolist()), lambda each: each.to(device))
    return inputs, targets


@lru_cache(maxsize=1)
def _training_samples(data: str, facts: DatasetFacts) -> TensorSource:
    """The training set, opened once and kept open: the gate draws several batches."""
    prepared = prepare(DataOptions.model_validate_json(data), facts)
    source = open_source(prepared, "train")
    assert isinstance(source, TensorSource), "image tasks draw their own samples"
    return source


def criterion_of(plan: RunPlan) -> Criterion | None:
    """The loss of the plan's task; None for classification, whose loss the engine computes."""
    return None if plan.spec.task.classifies else make_task(plan.spec.task, plan.dataset).loss
