"""Which plans one batch is tried for: `raysuite.train.trial_batch` tries it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from raysuite import models
from raysuite.errors import Mistake, UserError
from raysuite.plan.run_plan import RunPlan


def unknown_model(plan: RunPlan) -> list[Mistake]:
    """Why the plan's network cannot be imported, which is tried in this process."""
    message = import_error(models.check, plan.spec.model.name)
    return [Mistake(message, key="model.name")] if message else []


@cache
def import_error(check: Callable[[str], object], name: str) -> str:
    """Why `check` refuses a name, which it imports; "" where it does not. Tried once a process."""
    try:
        check(name)
    except UserError as error:
        return str(error)
    return ""


def unproven(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """Plans of another task than classification; plans whose network, data set or transform is the
    user's own, or has the user's options, weights or names of parameters, whose strategy gives
    layers something else than fp32, or whose optimiser does not take every network. The others need
    no dry batch: raysuite's tests train them."""
    return [
        plan
        for plan in plans
        if plan.spec.script is None
        and (
            ":" in plan.spec.model.name
            or plan.spec.model.options
            or plan.spec.model.weights
            or plan.spec.model.freeze
            or any(plan.spec.optimizer.patterns.values())
            or plan.spec.optimizer.averages
            or plan.spec.data.own
            or not plan.spec.task.classifies
            or plan.spec.data.transform
            or plan.spec.strategy.alone()
        )
    ]


def distinct(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """The first of all plans that differ in nothing that a dry batch depends on."""
    found: dict[tuple[Any, ...], RunPlan] = {}
    for plan in plans:
        depends = (
            plan.spec.model.model_dump_json(),
            plan.spec.data.model_dump_json(),
            plan.spec.task.model_dump_json(),
            plan.dataset,
            plan.memory_format,
            plan.spec.strategy.model_dump_json(),
            plan.spec.optimizer.weight_decay > 0,
            tuple(plan.spec.optimizer.patterns.values()),
            plan.spec.optimizer.averages,
            plan.spec.training.ema_decay is None,
            plan.spec.loader.loads,
            plan.device,
        )
        found.setdefault(depends, plan)
    return list(found.values())
