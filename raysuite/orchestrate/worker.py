"""The functions that Ray Train runs on every worker, to execute a group of plans in order."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import ray.train

from raysuite.errors import RunError, UserError, is_full
from raysuite.measure.host_samples import sampling
from raysuite.orchestrate import budget
from raysuite.orchestrate.controller import BrokenRunError
from raysuite.orchestrate.found_batches import tried_file
from raysuite.orchestrate.groups import checkpoint_folder, work_in
from raysuite.orchestrate.mailbox import Mailbox
from raysuite.orchestrate.rendezvous import decided, store_of
from raysuite.orchestrate.script_ranks import run_rank
from raysuite.orchestrate.stopping import FILE, requested_end, requested_stop
from raysuite.parallel.base import World
from raysuite.plan import RunPlan
from raysuite.plan.batch_candidates import search_of
from raysuite.records import EpochFinished, Results, RunFinished
from raysuite.records.base import checked_line
from raysuite.records.batch_trials import TriedFile
from raysuite.records.ends import is_left
from raysuite.records.journal import recorded_epochs
from raysuite.records.system import system_file
from raysuite.train.batch_search import search_batch
from raysuite.train.checkpoint import latest_checkpoint, places, remove_checkpoint, remove_partial
from raysuite.train.out_of_memory import figures, is_out_of_memory
from raysuite.train.recording import recorded
from raysuite.train.world import is_peer_loss, torch_device

# The search for batch sizes, which runs on every worker before a suite.


def search_group(config: dict[str, Any]) -> None:
    """Find the batch size of every plan of `config["plans"]`, in order, until asked to stop.

    The function is called again on new workers after workers ran out of memory; it then skips the
    sizes that were tried.
    """
    settle(config)
    rank = ray.train.get_context().get_world_rank()
    results = Results(Path(config["results"]))
    for plan in [RunPlan.model_validate(each) for each in config["plans"]]:
        tried = tried_file(results.folder, plan)
        is_next = decided(plan.run_id, rank, partial(_shall_search, plan, results, tried))
        world = place_of(plan) if is_next else None
        if world is None:
            continue
        try:
            search_batch(plan, world, tried, lambda: requested_stop(results.folder) is not None)
        except Exception as error:
            raise _broken(error) from None


def _broken(error: Exception, memory: Callable[[], str] | None = None) -> BrokenRunError:
    """The BrokenRunError that reports `error` to the driver. If memory ran out, its text also has
    the figures that `memory` returns."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    lacking = is_out_of_memory(error)
    if lacking and memory is not None:
        text = f"{text.splitlines()[0]}; {memory()}"
    trace = traceback.format_exc()
    return BrokenRunError(text, trace, is_peer_loss(error), lacking, is_full(error))


def _shall_search(plan: RunPlan, results: Results, tried: TriedFile) -> bool:
    """Whether to search: False after a request to stop, after the last size to try, and after an
    error that would occur again."""
    if requested_stop(results.folder) is not None:
        return False
    end = results.end_of(plan.run_id)
    raised = end is not None and getattr(end, "reason", "") == "error"
    return not raised and search_of(plan, tried.read()).next() is not None


_SHARED_S = 10.0
"""Seconds that a network file system may take until this host sees the driver's folder."""


Report = Callable[[EpochFinished], None]
"""Called on rank 0 with each epoch, after its line is in the journal and before its checkpoint is
written."""


def run_group(config: dict[str, Any], report: Report | None = None) -> None:
    """Run every plan of `config["plans"]` that has not ended yet, in order, until asked to stop.

    The function is called again on new workers after each failure that is retried. It then skips
    runs that have ended, and resumes the interrupted run from its last checkpoint. Ranks that take
    no part in a run wait for the next run.
    """
    settle(config)
    results = Results(Path(config["results"]))
    plans = [RunPlan.model_validate(plan) for plan in config["plans"]]
    rank = ray.train.get_context().get_world_rank()
    for plan in plans:
        key = f"run/{config.get('job', 0)}/{plan.run_id}"
        begin = decided(key, rank, partial(_decide, plan, results, config))
        if plan.spec.script is not None:
            if begin is not None and (place := _torchrun_place(plan)) is not None:
                _run_script(plan, place, results, key)
            continue
        world = place_of(plan) if begin is not None else None
        if world is not None:
            _run(plan, world, results, config, **begin, report=report)


def serve(config: dict[str, Any]) -> None:
    """Execute jobs in order, each by `run_group`, until there are no more.

    `config["mailbox"]` is the address of the trial's Mailbox. The Mailbox contains each job (a
    config for `run_group`) under `job/NUMBER`, and null under the number after the last job;
    `config["first"]` is the number of the first job for these workers. Rank 0 puts each epoch under
    `report/NUMBER/0`, `report/NUMBER/1` and so on, and null after the job's end.
    """
    rank, mailbox = ray.train.get_context().get_world_rank(), Mailbox.at(*config["mailbox"])
    for number in count(config["first"]):
        job = mailbox.get(f"job/{number}")
        if job is None:
            return
        keys = (f"report/{number}/{place}" for place in count())
        # workers that were lost may have used the first keys
        free = (key for key in keys if not mailbox.has(key))
        run_group({**job, "job": number}, partial(_report, mailbox, free))
        if rank == 0:
            mailbox.put(next(free), None)


_PER_STEP = ("losses", "learning_rates", "step_seconds")


def _report(mailbox: Mailbox, keys: Iterator[str], epoch: EpochFinished) -> None:
    """Put an epoch into the Mailbox, as a line of the journal without values per step."""
    brief = epoch.model_copy(update={name: [] for name in _PER_STEP})
    mailbox.put(next(keys), checked_line(brief).decode())


def settle(config: dict[str, Any]) -> None:
    """Change to the driver's working folder, and add it to the import path.

    Raises BrokenRunError if the driver's results folder is not visible on this host: the driver
    would not see what rank 0 writes.
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
    work_in(config["path"])


def place_of(plan: RunPlan) -> World | None:
    """This worker's ranks and device; None if the plan does not use this worker. The ranks are also
    set as torchrun's environment variables.

    Raises BrokenRunError if the plan needs a GPU and torch cannot use one.
    """
    place = _torchrun_place(plan)
    if place is None:
        return None
    os.environ.update(place)
    rank, local_rank = int(place["RANK"]), int(place["LOCAL_RANK"])
    try:
        device = torch_device(plan.device, local_rank)
    except UserError as error:  # otherwise the error would count as a lost worker
        raise BrokenRunError(str(error), str(error), peer_lost=False) from error
    return World(rank, plan.workers, local_rank, device)


def _torchrun_place(plan: RunPlan) -> dict[str, str] | None:
    """This worker's ranks as torchrun's variables; None if the plan does not use this worker."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    if rank >= plan.workers:
        return None
    place = {
        "RANK": rank,
        "LOCAL_RANK": context.get_local_rank(),
        "GROUP_RANK": context.get_node_rank(),
        "WORLD_SIZE": plan.workers,
        "LOCAL_WORLD_SIZE": min(context.get_local_world_size(), plan.workers),
    }
    return {name: str(value) for name, value in place.items()}


def _decide(plan: RunPlan, results: Results, config: dict[str, Any]) -> dict[str, Any] | None:
    """Rank 0's decision: None if the plan must not run; else a dictionary. Its `resume` is the
    checkpoint to start from, or None to start at the first step; its `unread` says why a newer
    checkpoint could not be read, and is empty if there is none."""
    if not is_left(results.end_of(plan.run_id)) or requested_stop(results.folder) is not None:
        return None
    if not budget.allows(results, plan):
        return None
    folder = _checkpoint_folder(plan, results, config)
    remove_partial(folder)  # ranks that died may have left it
    epochs = recorded_epochs(results.records(plan.run_id))
    found, unread = latest_checkpoint(folder, plan.run_id, epochs)
    return {"resume": str(found) if found else config.get("taken"), "unread": unread}


def _checkpoint_folder(plan: RunPlan, results: Results, config: dict[str, Any]) -> Path:
    return checkpoint_folder(results, config.get("checkpoint") or plan.run_id)


def _run(
    plan: RunPlan,
    world: World,
    results: Results,
    config: dict[str, Any],
    resume: str | None,
    unread: str,
    report: Report | None,
) -> None:
    folder = _checkpoint_folder(plan, results, config)
    try:
        # `resume` was sent through a store without authentication
        if resume not in (None, config.get("taken"), *map(str, places(folder))):
            raise RunError(f"{resume} is not a checkpoint of this run")
        with _sampling(plan, results, world.local_rank == 0):
            for record in recorded(
                plan,
                world,
                results,
                folder,
                resume=Path(resume) if resume else None,
                requested_end=lambda: requested_end(results.folder, plan.run_id),
                until=config.get("until"),
                unread=unread,
            ):
                if world.rank != 0:
                    continue
                if isinstance(record, EpochFinished) and report is not None:
                    report(record)
                if isinstance(record, RunFinished):
                    remove_checkpoint(folder)
    except Exception as error:
        # other ranks may wait for this rank; Ray Train ends them, and the remaining runs continue
        raise _broken(error, partial(figures, plan, world)) from None


def _run_script(plan: RunPlan, place: dict[str, str], results: Results, key: str) -> None:
    node = ray.get_runtime_context().get_node_id()
    try:
        with _sampling(plan, results, place["LOCAL_RANK"] == "0"):
            run_rank(plan, place, node, results, store_of(key))
    except Exception as error:
        raise _broken(error) from None


def _sampling(plan: RunPlan, results: Results, wanted: bool) -> AbstractContextManager[None]:
    """Sample the load of this worker's host into the host's file, if `wanted`."""
    folder = results.journal_file(plan.run_id).parent
    return sampling(system_file(folder, socket.gethostname()) if wanted else None)
