"""A group of plans that share workers -> one Ray Train run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysuite.plan import RunPlan
from raysuite.records import Results

INTERFACE = "RAYSUITE_INTERFACE"
"""Names the network interface between nodes; `raysuite cluster up` sets it for all nodes."""

_MOST_STARTS = 10

CHECKPOINTS = "checkpoints"
"""In the results folder; below it a folder for each name of a trainer."""
_SNAPSHOT = "checkpoint_manager_snapshot.json"
"""Ray Train's own list of the checkpoints that are whole, in a trainer's folder."""


@dataclass(frozen=True)
class Leg:
    """A part of a run, from one interval of a sweep to the next."""

    name: str
    """Of the trainer; checkpoints of another name are none of it."""
    until: int | None
    """The epochs behind it when it stops; None: it goes on to its end."""
    taken: str | None
    """The folder of the checkpoint that it begins from where it has none of its own."""


Work = Callable[[dict[str, Any]], None]
"""What each worker runs, with the plans as plain data, the results folder and the user's own."""


def make_trainer(
    plans: Sequence[RunPlan],
    results: Path,
    wait_for_nodes_s: float | None = None,
    deadline: float | None = None,
    work: Work | None = None,
    leg: Leg | None = None,
) -> Any:
    """The Ray Train trainer that runs `plans` on workers alike, or does other `work` of theirs.

    `wait_for_nodes_s`: how long it waits for a cluster that holds them, where not so long as the
    plans say. `deadline`: when its workers are ended, in seconds since 1970. `leg`: of one plan, a
    part alone.

    Its name follows from its plans, so that a suite that is resumed finds its checkpoints again.
    """
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import CheckpointConfig, FailureConfig, RunConfig

    from raysuite.orchestrate.failures import FailureRecorder
    from raysuite.orchestrate.horovod_trainer import HorovodConfig, HorovodTrainer
    from raysuite.orchestrate.node_keeper import NodeKeeper
    from raysuite.orchestrate.nodes import Need
    from raysuite.orchestrate.worker import run_group

    first, work = plans[0], work or run_group
    resources = first.spec.resources
    gpu = first.device == "gpu"
    wait_s = resources.wait_for_nodes_s if wait_for_nodes_s is None else wait_for_nodes_s
    keeper = NodeKeeper(Need.of(first), wait_s, results, [plan.run_id for plan in plans], deadline)
    common: dict[str, Any] = {
        "train_loop_config": {
            "plans": [plan.model_dump(mode="json") for plan in plans],
            "results": str(results),
            "path": os.getcwd(),
            **({} if leg is None else {"until": leg.until, "taken": leg.taken}),
        },
        "scaling_config": ScalingConfig(
            num_workers=first.workers,
            use_gpu=gpu,
            resources_per_worker={"CPU": resources.cpus_per_worker, **({"GPU": 1} if gpu else {})},
            placement_strategy=resources.placement.upper(),
        ),
        "run_config": RunConfig(
            name=f"group-{first.run_id}" if leg is None else leg.name,
            storage_path=str(results / CHECKPOINTS),
            worker_runtime_env=runtime_env(first, results),
            # Ray Train takes any of its own callbacks here, and types the simplest alone
            callbacks=[FailureRecorder(plans, results, keeper), keeper],  # type: ignore[list-item]
            failure_config=FailureConfig(
                # the recorder ends each run in time; this bounds what it does not hear of
                max_failures=len(plans) * (resources.retries + 1),
                # workers that die while they start, or that wait a minute for resources
                controller_failure_limit=_MOST_STARTS,
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    }
    strategy = first.spec.strategy
    if strategy.name == "horovod":
        config = HorovodConfig(
            strategy.fusion_threshold_mb, strategy.cycle_time_ms, os.environ.get(INTERFACE)
        )
        return HorovodTrainer(work, horovod_config=config, **common)
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    return TorchTrainer(work, torch_config=TorchConfig(backend=backend), **common)


def latest_checkpoint(trainer: Path) -> Path | None:
    """The checkpoint that a trainer, given by its folder, would go on from; None without any."""
    try:
        known = json.loads((trainer / _SNAPSHOT).read_text("utf-8"))
        return trainer / str(known["latest_checkpoint_result"]["checkpoint_dir_name"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def forget_checkpoint(run_id: str, results: Results) -> None:
    """See to it that no trainer goes on with a run; the others of its group keep what they have."""
    from raysuite.train.checkpoint import checkpoint_run_id

    for trainer in (results.folder / CHECKPOINTS).glob("*"):
        latest = latest_checkpoint(trainer)
        if latest is not None and checkpoint_run_id(latest) == run_id:
            (trainer / _SNAPSHOT).unlink()  # without it Ray Train begins anew, whatever stays
            shutil.rmtree(trainer, ignore_errors=True)


def runtime_env(plan: RunPlan, results: Path) -> dict[str, Any]:
    """Ray's runtime environment of the workers: the interface that they talk through, where one is
    named, and nsys around each, where the plan asks for it.

    nsys records from the start of the profile's steps to their end, into the run's folder, one
    `nsight-PID.nsys-rep` per worker. (Ray Core, "Profiling", nsight; Nsight Systems User Guide,
    CLI options.)
    """
    interface = os.environ.get(INTERFACE)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ()
    common = {"env_vars": dict.fromkeys(names, interface)} if names else {}
    if plan.spec.measure.profile != "nsight":
        return common
    folder = Results(results).journal_file(plan.run_id).parent
    folder.mkdir(parents=True, exist_ok=True)
    return {
        **common,
        "nsight": {
            "t": "cuda,cudnn,cublas,nvtx,osrt",
            "capture-range": "cudaProfilerApi",
            # by default nsys ends the process with the range
            "capture-range-end": "stop",
            # Ray puts it on a shell's command line
            "o": shlex.quote(str(folder.absolute() / "nsight-%p")),
        },
    }
