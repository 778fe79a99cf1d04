"""What Ray Train runs on every worker: a group of plans, one after the other."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import ray.train
from ray.train.collective import broadcast_from_rank_zero

from raysuite.errors import UserError
from raysuite.measure.system import sampling
from raysuite.orchestrate.failures import BrokenRunError
from raysuite.orchestrate.stopping import FILE, asked_to_prune, told
from raysuite.parallel.base import World
from raysuite.plan import RunPlan
from raysuite.records import Journal, Results, RunStopped
from raysuite.records.system import system_file
from raysuite.train.loop import TrainingLoop, checkpoint_run_id
from raysuite.train.memory import is_out_of_memory
from raysuite.train.peers import is_peer_loss
from raysuite.train.run import TRACE, Checkpoint, execute
from raysuite.train.world import torch_device

_SHARED_S = 10.0
"""How long a network file system may take to show the driver's folder."""


def run_group(config: dict[str, Any]) -> None:
    """Run every plan of `config["plans"]` that has not ended yet, in order, until told to stop.

    Called anew on fresh workers after each failure that Ray Train retries: what has ended stays
    ended, and the run that was broken off is taken up from its last checkpoint.
    """
    settle(config)
    results = Results(Path(config["results"]))
    plans = [RunPlan.model_validate(plan) for plan in config["plans"]]
    for plan in plans:
        if not broadcast_from_rank_zero(_shall_run(plan, results)):
            continue
        if _run(plan, place_of(plan), results, config):
            break


def settle(config: dict[str, Any]) -> None:
    """Work where the driver works, and import what lies there.

    Raises BrokenRunError where the driver's results are not to be seen: what rank 0 would write
    there, nobody would read.
    """
    deadline = time.monotonic() + _SHARED_S
    while not (Path(config["results"]) / FILE).exists():
        if time.monotonic() > deadline:
            host, folder = socket.gethostname(), config["results"]
            text = (
                f"{host} does not see the results folder {folder}: all nodes need it, so give "
                "--results FOLDER on a file system that they share"
            )
            raise BrokenRunError(text, text, peer_lost=False)
        time.sleep(0.5)
    if os.path.isdir(config["path"]):
        os.chdir(config["path"])  # a cluster that was joined began elsewhere
    if config["path"] not in sys.path:
        sys.path.insert(0, config["path"])  # the user's own models lie beside her spec


def place_of(plan: RunPlan) -> World:
    """This worker among those of a plan."""
    context = ray.train.get_context()
    local_rank = context.get_local_rank()
    return World(
        rank=context.get_world_rank(),
        size=context.get_world_size(),
        local_rank=local_rank,
        device=torch_device(plan.device, local_rank),
    )


def _shall_run(plan: RunPlan, results: Results) -> bool:
    """Rank 0's decision, which counts: its journals are the ones that are written."""
    rank = ray.train.get_context().get_world_rank()
    return rank == 0 and results.end_of(plan.run_id) is None and told(results.folder) is None


def _run(plan: RunPlan, world: World, results: Results, config: dict[str, Any]) -> bool:
    """Whether it stopped because it was told to."""

    def checkpoint(loop: TrainingLoop) -> None:
        with tempfile.TemporaryDirectory() as folder:
            loop.save(Path(folder))
            ray.train.report(
                {"run_id": plan.run_id, "epoch": loop.epoch},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
            )

    latest = ray.train.get_checkpoint()
    until, taken = config.get("until"), config.get("taken")
    try:
        if latest is None:
            resume = Path(taken) if taken else None
            return _write_all(plan, world, results, resume, checkpoint, until)
        with latest.as_directory() as folder:
            resume = Path(folder) if checkpoint_run_id(Path(folder)) == plan.run_id else None
            return _write_all(plan, world, results, resume, checkpoint, until)
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        # the other ranks may wait for this one: Ray Train ends them and goes on with the rest
        raise BrokenRunError(
            text, traceback.format_exc(), is_peer_loss(error), is_out_of_memory(error)
        ) from None


def _write_all(
    plan: RunPlan,
    world: World,
    results: Results,
    resume: Path | None,
    checkpoint: Checkpoint,
    until: int | None,
) -> bool:
    file = results.journal_file(plan.run_id)
    journal = Journal(file) if world.rank == 0 else None
    stopped = False
    # each host samples itself, into a file of its own
    samples = system_file(file.parent, socket.gethostname()) if world.local_rank == 0 else None
    with sampling(samples):
        for record in execute(
            plan,
            world,
            resume,
            checkpoint,
            file.with_name("model.pt"),
            file.with_name(TRACE),
            asked_to_stop=lambda: told(results.folder) or asked_to_prune(results, plan.run_id),
            until=until,
        ):
            if journal is not None:
                journal.write(record)
            stopped = isinstance(record, RunStopped)
    return stopped
