"""Select the plans for which `raysuite.train.trial_batch` trains one batch before the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from raysuite import models
from raysuite.errors import Mistake, UserError
from raysuite.plan.run_plan import RunPlan
from raysuite.spec.experiment import ExperimentSpec


def unknown_model(spec: ExperimentSpec) -> list[Mistake]:
    """Import the spec's network, if it has one, in this process; return a Mistake if that fails."""
    message = "" if spec.script else import_error(models.check, spec.model.name)
    return [Mistake(message, key="model.name")] if message else []


@cache
def import_error(check: Callable[[str], object], name: str) -> str:
    """The text of the UserError that `check(name)` raises, or "". `check` imports `name`; this
    happens once per process."""
    try:
        check(name)
    except UserError as error:
        return str(error)
    return ""


def unproven(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """The plans that need a dry batch, that is, one batch that is trained before the run. The
    combinations of options in all other plans are trained by raysuite's own tests.

    A plan needs one if it has: a task other than classification; the user's own network, data set
    or transform; model options, weights or parameter names from the user; a strategy that passes a
    dtype other than fp32 to layers; or an optimiser that averages the weights.
    """
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
    """The first plan of each group of plans whose dry batches would be equal."""
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
            plan.spec.optimizer.real,
            plan.spec.training.ema_decay is None,
            plan.spec.loader.loads,
            plan.device,
        )
        found.setdefault(depends, plan)
    return list(found.values())
