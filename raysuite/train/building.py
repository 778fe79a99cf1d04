"""The model of a plan under its strategy, as every step of a run knows it."""

from __future__ import annotations

import torch
from torch import nn

from raysuite import models, optim
from raysuite.optim.average import WeightAverage
from raysuite.parallel.base import Engine, StepSettings, Strategy, World
from raysuite.plan import RunPlan


def build_model(plan: RunPlan, world: World) -> nn.Module:
    """The plan's model on this rank's device, with the same weights on all ranks."""
    torch.manual_seed(plan.seed)
    return models.build(plan.spec.model, plan.dataset).to(world.device)


def build_engine(
    plan: RunPlan, world: World, strategy: Strategy
) -> tuple[Engine, WeightAverage | None]:
    """The engine, and the average of its weights where the plan asks for one. All ranks must call
    it."""
    training = plan.spec.training
    model = build_model(plan, world)
    # a copy of the bare model: frameworks replace weights, or put hooks on them
    average = WeightAverage(model, training.ema_decay) if training.ema_decay else None
    engine = strategy.prepare(
        model,
        lambda parameters: optim.build_optimizer(plan.spec.optimizer, parameters, plan.peak_lr),
        StepSettings(
            micro_batch=plan.micro_batch,
            accumulate=plan.accumulate,
            clip_norm=training.clip_norm,
            precision=training.precision,
            label_smoothing=training.label_smoothing,
        ),
    )
    return engine, average
