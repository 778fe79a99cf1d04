"""The model of a plan under its strategy, for every part of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from raysuite import lazy, models, optim
from raysuite.models.fine_tuning import load_weights
from raysuite.optim.average import WeightAverage
from raysuite.parallel.base import Engine, StepSettings, Strategy, World
from raysuite.parallel.precision import MEMORY_FORMATS
from raysuite.plan import RunPlan


def import_own(plan: RunPlan) -> None:
    """Import the user's modules. What they change when they are imported, which is once a process,
    is not undone at the end of a run. Raises UserError where one cannot be imported."""
    models.check(plan.spec.model.name)
    data = plan.spec.data
    own = (data.name if data.own else None, data.transform, *plan.spec.strategy.imports.values())
    for target in filter(None, own):
        lazy.load(target)


def set_torch(plan: RunPlan) -> None:
    """Set torch's options of the whole process."""
    torch.set_num_threads(plan.spec.resources.cpus_per_worker)
    torch.backends.cudnn.benchmark = plan.spec.training.cudnn_benchmark


def build_model(plan: RunPlan, world: World) -> nn.Module:
    """The plan's model on this rank's device, with the same weights on all ranks."""
    torch.manual_seed(plan.seed)
    model = models.build(plan.spec.model, plan.dataset)
    if plan.spec.model.weights is not None:
        load_weights(model, Path(plan.spec.model.weights), plan.dataset)
    model.to(memory_format=MEMORY_FORMATS[plan.memory_format])
    return model.to(world.device)


def step_settings(plan: RunPlan) -> StepSettings:
    """What an optimiser step of the plan means."""
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
    )


def build_engine(
    plan: RunPlan, world: World, strategy: Strategy
) -> tuple[Engine, WeightAverage | None]:
    """The engine, and the average of its weights where the plan asks for one. All ranks must call
    it."""
    decay = plan.spec.training.ema_decay
    model = build_model(plan, world)
    # a copy of the bare model: frameworks replace weights, or put hooks on them
    average = WeightAverage(model, decay) if decay else None
    names: dict[Tensor, str] = {each: name for name, each in model.named_parameters()}
    engine = strategy.prepare(
        model,
        partial(optim.build_optimizer, plan.spec.optimizer, lr=plan.peak_lr, names=names),
        step_settings(plan),
    )
    engine.compiler.cold()
    return engine, average
