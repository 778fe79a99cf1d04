"""What can be wrong with a plan beyond its own text: parts, imports and the cluster's size."""

from __future__ import annotations

from functools import cache

from raysuite import lazy
from raysuite.errors import Mistake, UserError
from raysuite.orchestrate.cluster import Capacity
from raysuite.plan import RunPlan

_PARTS = {"horovod": "horovod.torch:init", "deepspeed": "deepspeed:initialize"}


def lacking(plan: RunPlan) -> list[Mistake]:
    """What the plan names and cannot be imported: models, strategies, optional parts."""
    spec = plan.spec
    wanted = {}
    if ":" in spec.model.name:
        wanted["model.name"] = spec.model.name
    if spec.strategy.name == "custom":
        wanted["strategy.target"] = spec.strategy.target
    if spec.strategy.name in _PARTS:
        wanted["strategy"] = _PARTS[spec.strategy.name]
    if spec.loader.name == "dali":
        wanted["loader"] = "nvidia.dali:pipeline_def"
    found = {key: _import_error(target) for key, target in wanted.items()}
    return [Mistake(message, key=key) for key, message in found.items() if message]


@cache
def _import_error(target: str) -> str:
    try:
        lazy.load(target)
    except UserError as error:
        return str(error)
    return ""


def too_large(plan: RunPlan, capacity: Capacity) -> list[Mistake]:
    """Which of the cluster's resources the plan exceeds."""
    each = plan.spec.resources.cpus_per_worker
    have = f"{capacity.cpus:g} CPUs and {capacity.gpus:g} GPUs on {capacity.nodes} node(s)"
    mistakes = []
    if plan.workers * each > capacity.cpus:
        most = int(capacity.cpus // each)
        message = (
            f"{plan.workers} workers x {each} CPU each need {plan.workers * each} CPUs, and the "
            f"cluster has {have}; at most {most} workers fit"
        )
        mistakes.append(Mistake(message, key="resources.workers"))
    if plan.device == "gpu" and plan.workers > capacity.gpus:
        message = f"{plan.workers} workers need {plan.workers} GPUs, and the cluster has {have}"
        mistakes.append(Mistake(message, key="resources.workers"))
    return mistakes
