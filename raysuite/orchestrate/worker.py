"""What Ray Train runs on every worker: a group of plans, one after the other."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import ray.train
from ray.train.collective import broadcast_from_rank_zero

from raysuite.errors import UserError
from raysuite.parallel.base import World
from raysuite.plan import RunPlan
from raysuite.records import Journal, Results, RunFailed, RunStarted
from raysuite.train.loop import TrainingLoop, checkpoint_run_id
from raysuite.train.run import execute
from raysuite.train.world import torch_device


def run_group(config: dict[str, Any]) -> None:
    """Run every plan of `config["plans"]` that has not ended yet, in order.

    Called anew on fresh workers after each failure that Ray Train retries: what has ended stays
    ended, and the run that was broken off is taken up from its last checkpoint.
    """
    if config["path"] not in sys.path:
        sys.path.insert(0, config["path"])  # the user's own models lie beside her spec
    context = ray.train.get_context()
    results = Results(Path(config["results"]))
    plans = [RunPlan.model_validate(plan) for plan in config["plans"]]
    for plan in plans:
        if not broadcast_from_rank_zero(_shall_run(plan, results)):
            continue
        local_rank = context.get_local_rank()
        world = World(
            rank=context.get_world_rank(),
            size=context.get_world_size(),
            local_rank=local_rank,
            device=torch_device(plan.device, local_rank),
        )
        _run(plan, world, results)


def _shall_run(plan: RunPlan, results: Results) -> bool:
    """Rank 0's decision: not what has ended, and not what has died too often."""
    if ray.train.get_context().get_world_rank() != 0:
        return False
    if results.end_of(plan.run_id) is not None:
        return False
    attempts = sum(isinstance(r, RunStarted) for r in results.since_last_end(plan.run_id))
    if attempts > plan.spec.resources.retries:
        message = f"its workers died in each of {attempts} attempts"
        Journal(results.journal_file(plan.run_id)).write(
            RunFailed(run_id=plan.run_id, reason="lost", message=message)
        )
        return False
    return True


def _run(plan: RunPlan, world: World, results: Results) -> None:
    def checkpoint(loop: TrainingLoop) -> None:
        with tempfile.TemporaryDirectory() as folder:
            loop.save(Path(folder))
            ray.train.report(
                {"run_id": plan.run_id, "epoch": loop.epoch},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
            )

    journal = Journal(results.journal_file(plan.run_id))
    latest = ray.train.get_checkpoint()
    try:
        if latest is None:
            _write_all(plan, world, journal, None, checkpoint)
        else:
            with latest.as_directory() as folder:
                ours = checkpoint_run_id(Path(folder)) == plan.run_id
                _write_all(plan, world, journal, Path(folder) if ours else None, checkpoint)
    except Exception as error:
        if not _lost_a_peer(error):
            message = (
                str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            )
            journal.write(
                RunFailed(
                    run_id=plan.run_id,
                    reason="error",
                    message=f"rank {world.rank}: {message}",
                    detail=traceback.format_exc(),
                )
            )
        # the other ranks may wait for this one: let Ray Train end them and go on with the rest
        raise


def _write_all(
    plan: RunPlan, world: World, journal: Journal, resume: Path | None, checkpoint: Any
) -> None:
    model_file = journal.file.parent / "model.pt"
    for record in execute(plan, world, resume, checkpoint, model_file):
        if world.rank == 0:
            journal.write(record)


_PEER_LOST = ("gloo", "nccl", "connection", "horovod", "socket", "peer", "timed out")


def _lost_a_peer(error: Exception) -> bool:
    """Whether a collective failed, which says that another rank died and not that this one erred."""
    kind = type(error)
    if kind.__name__ in ("HorovodInternalError", "DistBackendError", "DistNetworkError"):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _PEER_LOST)
