"""Execute a suite: all runs of a spec, in order, on one cluster, with one results folder."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysuite.errors import HeadLostError, StorageError, UserError
from raysuite.files import write_whole
from raysuite.orchestrate import budget, stopping
from raysuite.orchestrate.capacity import Capacity
from raysuite.orchestrate.failures import record_lost, storage_error
from raysuite.orchestrate.groups import checkpoint_folder, make_trainer
from raysuite.orchestrate.leaving_nodes import NodesGoneError, reporting, with_fewer
from raysuite.orchestrate.ray_cluster import check_listening
from raysuite.orchestrate.script_launch import ScriptRuns
from raysuite.plan import RunPlan, groups
from raysuite.records import BatchFound, Journal, Results, RunFailed
from raysuite.records.ends import is_left
from raysuite.records.node_checks import FEWEST, findings, write_checks
from raysuite.records.node_checks import FILE as NODES
from raysuite.spec import Document
from raysuite.train.stop_together import Stop

# Find out whether an error of a trainer means that the cluster's head has ended. The head's
# processes end one after the other, so the driver first gets an error about an unavailable actor.

PATIENCE_S = 10.0
"""Upper bound, in seconds, of the time in which the head's processes end, from the end of the first
process to the end of the last."""
_MEASURING_S = 120.0
"""Time limit in seconds for each of the two parts of the node check; each takes some seconds."""


def check_head() -> None:
    """Raise HeadLostError if Ray's head is ending, or has ended."""
    import ray

    wait_while_reachable(ray.get_runtime_context().gcs_address, PATIENCE_S)


def wait_while_reachable(address: str, patience_s: float) -> None:
    """Raise HeadLostError if HOST:PORT is closed, or closes within `patience_s` seconds."""
    end = time.monotonic() + patience_s
    while True:
        try:
            check_listening(address)
        except OSError as error:
            raise HeadLostError(
                f"Ray's head at {address} is gone ({error}); the suite is resumed when the "
                "cluster's head is started again, or with `raysuite run --resume-from RESULTS`"
            ) from error
        if time.monotonic() > end:
            return
        time.sleep(0.5)


_POLL_SECONDS = 0.5
_ENDING_S = 20.0
"""Seconds that Ray may take to end workers that did not stop in time."""
_SHUTDOWN_S = 3.0
"""Seconds that a trainer's thread may take to end after `shut_down`."""
_abandoned: list[list[BaseException]] = []
"""Exceptions of threads that are no longer waited for. They are kept until this process ends
because they refer to Ray's objects: freeing one while Ray shuts down would end the process with
code 1."""


def create(document: Document, plans: Sequence[RunPlan], root: Path) -> Results:
    """Create the results folder ROOT/NAME/DATE-TIME of a new suite, with its spec and plans."""
    results = Results.create(root / plans[0].spec.name)
    write_whole(results.folder / "spec.yaml", document.text.encode())
    results.write_plans([plan.model_dump(mode="json") for plan in plans])
    return results


def latest(name: str, root: Path) -> Results:
    """The newest results of an experiment. Raises UserError if there are none."""
    try:
        return Results.open((root / name).absolute())
    except UserError as error:
        raise UserError(
            f"nothing to resume: {root / name} contains no results; leave --resume out"
        ) from error


def planned(results: Results) -> list[RunPlan]:
    """The runs that were planned when the suite began."""
    return [RunPlan.model_validate(plan) for plan in results.plans()]


def reset_failures(plans: Sequence[RunPlan], results: Results) -> None:
    """Prepare failed runs to start again from their first step. The old journal is kept next to the
    new journal, which begins with the result of the batch search, if there was a search."""
    from raysuite.train.checkpoint import remove_checkpoint  # imported on use: it imports torch

    for plan in plans:
        records = results.records(plan.run_id)
        if isinstance(results.end_of(plan.run_id), RunFailed):
            remove_checkpoint(checkpoint_folder(results, plan.run_id))
            file = results.journal_file(plan.run_id)
            seconds = itertools.count(int(time.time()))
            names = (file.with_name(f"journal.failed-{second}.jsonl") for second in seconds)
            file.rename(next(name for name in names if not name.exists()))
            for record in records:
                if isinstance(record, BatchFound):
                    Journal(file).write(record)


@dataclass(frozen=True)
class Listener:
    """Callbacks of a running suite or sweep."""

    requested_stop: Callable[[], Stop | None]
    """Called about twice per second; returns a request to stop, or None."""
    poll: Callable[[], None] = lambda: None
    """Called about twice per second during runs."""
    say: Callable[[str], None] = lambda line: None
    """Called with a line of text for the user, for example when a node is lost or joins."""
    added: Callable[[RunPlan], None] = lambda plan: None
    """Called with a new run: a sweep's trial, or a run that replaces a run that lost a node."""


def run(
    plans: Sequence[RunPlan], results: Results, nodes: int, listener: Listener, on_ray: bool = True
) -> Stop | None:
    """Execute the unfinished runs; return the request that stopped the suite early, if any.

    If a group's workers cannot be kept alive, the group's unfinished runs are recorded as failed,
    and the next group starts. `nodes`: number of nodes at the beginning. Scripts do not need Ray:
    if not `on_ray`, torch's launcher runs them on this machine.
    """
    stopping.request_stop(results.folder, None)
    if on_ray and nodes >= FEWEST and not (results.folder / NODES).exists():
        _measure_nodes(results.folder, listener)
    count = len(plans)
    pending = deque(groups(plans, one_node=nodes == 1))
    gave_up_at: Capacity | None = None
    with reporting(nodes, listener.say):
        while pending:
            group = pending.popleft()
            unfinished = _unfinished(group, results)
            if not unfinished:
                continue
            if stop := listener.requested_stop():
                return stop
            # do not wait if no node returned during the last wait, or since then
            patience = 0.0 if gave_up_at is not None and Capacity.now() == gave_up_at else None
            work: Any = (
                make_trainer(group, results.folder, patience)
                if on_ray
                else ScriptRuns(group, results)
            )
            error, stop = fit(work, results, listener)
            listener.poll()
            if stop is not None:
                left = _unfinished([plan for each in (group, *pending) for plan in each], results)
                return stop if left else None
            if full := storage_error(error):
                raise StorageError(str(full)) from error
            missing = isinstance(error, NodesGoneError)
            if not missing and on_ray and _unfinished(unfinished, results):
                check_head()
            gave_up_at = Capacity.now() if missing else None
            fewer: list[RunPlan] = []
            for plan in _unfinished(unfinished, results):
                record_lost(plan, results, error)
                made = with_fewer(plan, count + len(fewer)) if missing else None
                if made is not None:
                    fewer.append(made)
                    results.add_plan(made.model_dump(mode="json"))
                    listener.added(made)
            results.settle_plans()
            count += len(fewer)
            pending.extend(groups(fewer, one_node=nodes == 1))
            listener.poll()
    return None


def _measure_nodes(folder: Path, listener: Listener) -> None:
    """Measure and record every node before the runs, and report slow nodes."""
    from ray.exceptions import RayError

    from raysuite.orchestrate.node_check import check_nodes  # imported on use: it imports torch

    try:
        rows = check_nodes(folder, _MEASURING_S)
    except RayError as error:  # a node is lost or busy: the runs report this later
        listener.say(f"the nodes were not measured: {type(error).__name__}")
        return
    write_checks(folder / NODES, rows)
    for line in findings(rows):
        listener.say(line)


def _unfinished(plans: Sequence[RunPlan], results: Results) -> list[RunPlan]:
    declined = budget.declined(results)
    return [
        plan
        for plan in plans
        if plan.run_id not in declined and is_left(results.end_of(plan.run_id))
    ]


def fit(
    work: Any, results: Results, listener: Listener, shut_down: Callable[[], None] | None = None
) -> tuple[Exception | None, Stop | None]:
    """Run a trainer, or a tuner, to its end.

    Return the exception that ended the trainer, or None, and the request to stop, or None.

    NodeKeeper ends workers that have not stopped in time. If Ray does not respond, or after Ctrl-C,
    workers end only when this process shuts down Ray. `shut_down`, which stops threads that call
    Ray, is always called at the end.
    """
    ended: list[BaseException] = []
    # Ctrl-C during `join` can make a running thread not `alive` (bpo-45274)
    is_over = threading.Event()

    def begin() -> None:
        try:
            work.fit()
        except BaseException as error:
            ended.append(error)
        finally:
            is_over.set()

    stop: Stop | None = None
    late_at: float | None = None
    # in a thread: on Ctrl-C, Ray's handler would wait for the workers instead of ending them
    threading.Thread(target=begin, name="ray-fit", daemon=True).start()
    over = False
    try:
        while not over:
            over = is_over.wait(_POLL_SECONDS)
            listener.poll()
            if stop is None and (stop := listener.requested_stop()):
                stopping.request_stop(results.folder, stop)
            if stop and late_at is None and stopping.is_late(stop):
                late_at = time.monotonic()
                listener.say(
                    "the workers did not stop in time: runs are resumed from their last checkpoint"
                )
            if late_at is not None and time.monotonic() > late_at + _ENDING_S:
                break
    finally:
        if shut_down is not None:
            shut_down()
            is_over.wait(_SHUTDOWN_S)
        if not is_over.is_set():
            _abandoned.append(ended)
            if hasattr(work, "halt"):
                work.halt()
    return next((error for error in ended if isinstance(error, Exception)), None), stop
