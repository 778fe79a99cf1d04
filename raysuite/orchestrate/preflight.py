"""Check the requirements of a plan: optional parts, imports and the cluster's size."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from raysuite import lazy
from raysuite.cluster import private
from raysuite.errors import Mistake, SpecError
from raysuite.measure.environment import cuda_mistake_here, driver_version
from raysuite.orchestrate.capacity import Capacity
from raysuite.parts import installed, part
from raysuite.plan import RunPlan, make_plans, placed
from raysuite.plan.dry_batch import distinct, import_error, unknown_model
from raysuite.plan.matrix import expand
from raysuite.spec import Document
from raysuite.spec.experiment import ExperimentSpec
from raysuite.units import human_bytes

_FOUND, _OUTPUT = "found", "output"
_LAST_LINES = 3
_FP32_BYTES = 4


@contextmanager
def dry_batch(
    plans: Sequence[RunPlan], document: Document | None, batches: bool = True
) -> Iterator[Callable[[], None]]:
    """Start a process that passes one batch through the network of each plan; without `batches`,
    the process only imports each network. Plans of scripts are left out.

    The process imports torch and the user's modules, which takes seconds. Yields a function that
    waits for the process and raises SpecError with all mistakes, each with file and line if
    `document` is given.
    """
    plans = distinct([plan for plan in plans if plan.spec.script is None])
    if not plans:
        yield lambda: None
        return
    with private.temporary_folder("rs-dry-") as folder:
        given, words = folder / "plans.json", [str(folder / _FOUND)]
        words += [] if batches else ["--imports"]
        given.write_text(json.dumps([each.model_dump(mode="json") for each in plans]), "utf-8")
        with given.open() as stdin, (folder / _OUTPUT).open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "raysuite.train.trial_batch", *words],
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only this process handles Ctrl-C
            )
        try:
            yield partial(_raise_what_was_found, process, plans, folder, document)
        finally:
            process.kill()
            process.wait()


def _raise_what_was_found(
    process: subprocess.Popen[bytes],
    plans: Sequence[RunPlan],
    folder: Path,
    document: Document | None,
) -> None:
    code, file = process.wait(), folder / _FOUND
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    found = [
        _placed(plan, Mistake(message, key=key), document)
        for plan, line in zip(plans, lines, strict=False)
        for key, message in json.loads(line)
    ]
    if len(lines) < len(plans):
        output = (folder / _OUTPUT).read_text("utf-8", errors="replace").splitlines()
        last = " | ".join(output[-_LAST_LINES:])
        message = f"the process that tried one batch ended with exit status {code}: {last}"
        found.append(_placed(plans[len(lines)], Mistake(message, key="model.name"), document))
    _raise_all(found)


def plans_here(document: Document, gpus: int | None, elsewhere: bool = False) -> list[RunPlan]:
    """The plans of a document. If some are invalid, the SpecError also names what the runs lack on
    this machine, unless the runs are `elsewhere`."""
    try:
        return make_plans(document, gpus, elsewhere=elsewhere)
    except SpecError as error:
        found = [] if elsewhere else expand(document)
        absent = [
            placed(document, mistake, label)
            for label, spec in found
            for mistake in [*unknown_model(spec), *lacking_parts(spec)]
        ]
        raise SpecError([*error.mistakes, *absent]) from error


def lacking(plan: RunPlan) -> list[Mistake]:
    """A plan's missing requirements on this machine: imports, optional parts, files, tools."""
    found = lacking_parts(plan.spec)
    # a host without a driver has no GPUs; those of the run are then on other nodes
    if plan.device == "gpu" and driver_version() and (why := cuda_mistake_here()):
        found.append(Mistake(why, key="resources.device"))
    return found


def lacking_parts(spec: ExperimentSpec) -> list[Mistake]:
    """What a spec's runs lack on this machine, apart from GPUs."""
    found: dict[str, str] = {}
    if spec.model.weights is not None and not Path(spec.model.weights).is_file():
        found["model.weights"] = (
            f"there is no file {spec.model.weights}; give a file with a state_dict, at a path "
            "that all nodes can read"
        )
    for key, target in spec.strategy.imports.items():
        found[key] = import_error(lazy.load, target)
    if spec.data.transform is not None:
        found["data.transform"] = import_error(lazy.load, spec.data.transform)
    if spec.measure.profile == "nsight" and shutil.which("nsys") is None:
        found["measure.profile"] = (
            "the value `nsight` needs NVIDIA's nsys in the PATH of this machine and of all "
            "workers, but nsys is not in the PATH here; install Nsight Systems, or set "
            "measure.profile to torch or off"
        )
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if spec.training.compile != "off" and not any(map(shutil.which, compilers)):
        found["training.compile"] = (
            "torch.compile needs a C++ compiler on every node, and there is none here; on Debian "
            "or Ubuntu: apt-get install g++; or set training.compile to off"
        )
    for key, name in (
        ("strategy", spec.strategy.part),
        ("loader", spec.loader.part),
        ("optimizer", spec.optimizer.part),
        *(("track", name) for name in spec.track),
    ):
        if not installed(name):
            how = part(name).install
            found[key] = f"{name} is not installed; `{how}` installs it, or shows what is missing"
    return [Mistake(message, key=key) for key, message in found.items() if message]


def check(plans: Sequence[RunPlan], capacity: Capacity, document: Document | None) -> None:
    """Raise one SpecError with everything that prevents the plans from running.

    Without a document, mistakes have no file and line. `dry_batch` checks the import of models.
    """
    _raise_all(
        _mistakes(plans, lambda plan: [*lacking(plan), *too_large(plan, capacity)], document)
    )


def check_early(plans: Sequence[RunPlan], document: Document, elsewhere: bool) -> None:
    """Raise SpecError before Ray starts, if there are mistakes that can be found without a dry
    batch. (The dry batch runs in parallel with Ray's start, and finds all other mistakes.)"""
    if _wrong_here(plans, document, elsewhere):
        check_here(plans, document, elsewhere=elsewhere)


def check_here(
    plans: Sequence[RunPlan], document: Document, deep: bool = False, elsewhere: bool = False
) -> None:
    """Raise one SpecError with everything that prevents the plans from running on this machine,
    without starting Ray; if `deep`, make a dry batch too.

    The number of workers is not checked if the runs are `elsewhere`, or if RAY_ADDRESS names a
    cluster.
    """
    tried = [each for each in plans if deep or ":" in each.spec.model.name]
    with dry_batch(tried, document, batches=deep) as check_models:
        found = _wrong_here(plans, document, elsewhere)
        try:
            check_models()
        except SpecError as error:
            found += error.mistakes
    _raise_all(found)


def _wrong_here(plans: Sequence[RunPlan], document: Document, elsewhere: bool) -> list[Mistake]:
    capacity = None if elsewhere or os.environ.get("RAY_ADDRESS") else Capacity.here()

    def wrong(plan: RunPlan) -> list[Mistake]:
        size = too_large(plan, capacity) if capacity else []
        hint = "to plan for another cluster: raysuite plan --gpus N"
        return [*lacking(plan), *(replace(m, message=f"{m.message}; {hint}") for m in size)]

    return _mistakes(plans, wrong, document)


def _mistakes(
    plans: Sequence[RunPlan], wrong: Callable[[RunPlan], list[Mistake]], document: Document | None
) -> list[Mistake]:
    return [_placed(plan, mistake, document) for plan in plans for mistake in wrong(plan)]


def _placed(plan: RunPlan, mistake: Mistake, document: Document | None) -> Mistake:
    return placed(document, mistake, plan.label) if document else mistake


def _raise_all(found: Sequence[Mistake]) -> None:
    if found:
        raise SpecError(found)


def too_large(plan: RunPlan, capacity: Capacity) -> list[Mistake]:
    """A Mistake for each resource of the cluster that the plan exceeds."""
    each = plan.spec.resources.cpus_per_worker
    have = (
        f"{capacity.place} has {capacity.cpus:g} CPUs and {capacity.gpus:g} GPUs on "
        f"{capacity.nodes} node(s)"
    )
    mistakes: list[Mistake] = []
    if plan.workers * each > capacity.cpus:
        most = int(capacity.cpus // each)
        message = (
            f"{plan.workers} workers x {each} CPU each need {plan.workers * each} CPUs, and "
            f"{have}; at most {most} workers fit"
        )
        mistakes.append(Mistake(message, key="resources.workers"))
    if plan.device == "gpu" and plan.workers > capacity.gpus:
        message = f"{plan.workers} workers need {plan.workers} GPUs, and {have}"
        mistakes.append(Mistake(message, key="resources.workers"))
    facts = plan.dataset
    batch = plan.micro_batch * facts.image_values * _FP32_BYTES
    room = max((node.memory for node in capacity.each), default=math.inf)
    if batch > room:
        message = (
            f"one micro-batch of {plan.micro_batch} images of {facts.image_size} x "
            f"{facts.image_size} pixels takes {human_bytes(batch)}, but the node with the most "
            f"memory has {human_bytes(room)}; lower the image size or the batch size"
        )
        mistakes.append(Mistake(message, key="data.image_size"))
    most = capacity.holds(each, plan.device == "gpu")
    if not mistakes and most < plan.workers:
        what = f"{each} CPU(s){' and a GPU' if plan.device == 'gpu' else ''}"
        message = (
            f"{plan.workers} workers with {what} each: {have}, and all resources of a worker must "
            f"be on one node; at most {most} workers fit"
        )
        mistakes.append(Mistake(message, key="resources.workers"))
    return mistakes
