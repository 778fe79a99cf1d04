"""Make one Ray Train run from a group of plans that share workers."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.cluster.variables import INTERFACES
from raysuite.plan import RunPlan
from raysuite.records import Results

if TYPE_CHECKING:
    from raysuite.orchestrate.trainer import Workers

INTERFACE = "RAYSUITE_INTERFACE"
"""Environment variable with the name of the network interface for traffic between nodes. `cluster
up` sets it on all nodes."""

CHECKPOINTS = "checkpoints"
"""Folder in the results folder, with a folder for the checkpoint of each run or segment."""
_RAY = "ray-train"
"""A folder below CHECKPOINTS, for Ray Train's own files."""


@dataclass(frozen=True)
class Segment:
    """A segment of a run: the epochs of a trial between two comparisons of the sweep's trials."""

    checkpoint: str | None
    """Name of the segment's checkpoint; checkpoints with other names are ignored. None: the
    checkpoint of the whole run."""
    until: int | None
    """Number of completed epochs at which the segment stops; None: at the end of the run."""
    taken: str | None
    """Folder of the checkpoint from which the segment starts if it has no checkpoint yet."""


RUNS = "raysuite.orchestrate.worker:run_group"
"""The function that each worker runs, with the arguments from `work_config`."""


def make_trainer(
    plans: Sequence[RunPlan],
    results: Path,
    wait_for_nodes_s: float | None = None,
    deadline: float | None = None,
    work: str = RUNS,
    more: Callable[[], dict[str, Any]] = dict,
) -> Workers:
    """Make a worker group in which each worker runs the function `work` for `plans`.

    `wait_for_nodes_s`: seconds to wait for nodes; None: as in the largest plan. `deadline`: time at
    which the workers are ended, in seconds since 1970. `more`: returns further arguments of `work`;
    called each time `work` starts on new workers.

    The largest plan also determines the number of workers.
    """
    from ray.train.v2.api.config import RunConfig, ScalingConfig

    from raysuite.orchestrate.controller import FailureRecorder, NodeKeeper
    from raysuite.orchestrate.leaving_nodes import Need
    from raysuite.orchestrate.trainer import Workers

    largest = max(plans, key=lambda plan: plan.workers)
    resources = largest.spec.resources
    gpu = largest.device == "gpu"
    wait_s = resources.wait_for_nodes_s if wait_for_nodes_s is None else wait_for_nodes_s
    name, folder = f"group-{plans[0].run_id}", results.absolute() / CHECKPOINTS / _RAY
    run_ids = [plan.run_id for plan in plans]
    hosts = folder / f"{name}.json"
    keeper = NodeKeeper(Need.of(largest), wait_s, results, hosts, run_ids, deadline)
    return Workers(
        work,
        lambda: work_config(plans, results) | more(),
        ScalingConfig(
            num_workers=largest.workers,
            use_gpu=gpu,
            resources_per_worker={"CPU": resources.cpus_per_worker, **({"GPU": 1} if gpu else {})},
            placement_strategy=resources.placement.upper(),
        ),
        RunConfig(
            name=name, storage_path=str(folder), worker_runtime_env=runtime_env(plans[0], results)
        ),
        FailureRecorder(plans, results, keeper),
        keeper,
    )


def work_config(
    plans: Sequence[RunPlan], results: Path, segment: Segment | None = None
) -> dict[str, Any]:
    """The workers' arguments as plain data: plans, or a segment of one plan."""
    return {
        "plans": [plan.model_dump(mode="json") for plan in plans],
        "results": str(results),
        "path": os.getcwd(),
        **(asdict(segment) if segment else {}),
    }


def work_in(folder: str) -> None:
    """Change to the driver's working folder, and add it to the import path: relative paths and the
    user's own modules are found there."""
    if os.path.isdir(folder):  # processes of an existing cluster start elsewhere
        os.chdir(folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def checkpoint_folder(results: Results, name: str) -> Path:
    """The path of the checkpoint of a run or a segment, by its name."""
    return results.folder / CHECKPOINTS / name


def runtime_env(plan: RunPlan, results: Path) -> dict[str, Any]:
    """Ray's runtime environment of the workers: their network interface, if INTERFACE names one,
    and nsys for each worker, if the plan enables it.

    nsys records the profiled steps into one file per worker, `nsight-PID.nsys-rep` in the run's
    folder.
    (Ray Core, "Profiling", nsight; Nsight Systems User Guide, CLI options.)
    """
    interface = os.environ.get(INTERFACE)
    common = {"env_vars": dict.fromkeys(INTERFACES, interface)} if interface else {}
    if plan.spec.measure.profile != "nsight":
        return common
    folder = Results(results).journal_file(plan.run_id).parent
    folder.mkdir(parents=True, exist_ok=True)
    return {
        **common,
        "nsight": {
            "t": "cuda,cudnn,cublas,nvtx,osrt",
            "capture-range": "cudaProfilerApi",
            # by default, nsys ends the process after the captured range
            "capture-range-end": "stop",
            # Ray inserts the value into a shell command
            "o": shlex.quote(str(folder.absolute() / "nsight-%p")),
        },
    }
