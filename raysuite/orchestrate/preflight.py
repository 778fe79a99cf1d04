"""What can be wrong with a plan beyond its own text: parts, imports and the cluster's size."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from raysuite import lazy, models
from raysuite.errors import Mistake, UserError
from raysuite.orchestrate.cluster import Capacity
from raysuite.plan import RunPlan

_PARTS = {"horovod": "horovod", "deepspeed": "deepspeed", "dali": "nvidia.dali"}


def lacking(plan: RunPlan) -> list[Mistake]:
    """What the plan names and cannot be imported: models, strategies, optional parts."""
    spec = plan.spec
    found = {"model.name": _error(models.check, spec.model.name)}
    if spec.model.weights is not None and not Path(spec.model.weights).is_file():
        found["model.weights"] = (
            f"there is no file {spec.model.weights}; give one with a state_dict, on a path that "
            "all nodes see"
        )
    if spec.strategy.name == "custom":
        found["strategy.target"] = _error(lazy.load, spec.strategy.target)
    if spec.measure.profile == "nsight" and shutil.which("nsys") is None:
        found["measure.profile"] = (
            "nsight needs NVIDIA's nsys on the path of this machine and of all workers, and it is "
            "not there; install Nsight Systems, or set measure.profile to torch or off"
        )
    for key, name in (("strategy", spec.strategy.name), ("loader", spec.loader.name)):
        if name in _PARTS and not _installed(_PARTS[name]):
            message = f"{name} is not installed; `make setup` installs it, or says what it lacks"
            found[key] = message
    return [Mistake(message, key=key) for key, message in found.items() if message]


@cache
def _installed(module: str) -> bool:
    """Found, not imported: that would cost the driver seconds and gigabytes."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@cache
def _error(look: Callable[[str], object], name: str) -> str:
    try:
        look(name)
    except UserError as error:
        return str(error)
    return ""


def too_large(plan: RunPlan, capacity: Capacity) -> list[Mistake]:
    """Which of the cluster's resources the plan exceeds."""
    each = plan.spec.resources.cpus_per_worker
    have = f"{capacity.cpus:g} CPUs and {capacity.gpus:g} GPUs on {capacity.nodes} node(s)"
    mistakes: list[Mistake] = []
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
    most = capacity.holds(each, plan.device == "gpu")
    if not mistakes and most < plan.workers:
        what = f"{each} CPU(s){' and a GPU' if plan.device == 'gpu' else ''}"
        message = (
            f"{plan.workers} workers with {what} each: the cluster has {have}, and a worker lies "
            f"on one of them; at most {most} fit"
        )
        mistakes.append(Mistake(message, key="resources.workers"))
    return mistakes
