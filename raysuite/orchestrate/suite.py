"""A suite: every run of a spec, in order, on one cluster, into one results folder."""

from __future__ import annotations

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
from raysuite.orchestrate.failures import nodes_gone, record_lost, storage_error
from raysuite.orchestrate.groups import checkpoint_folder, make_trainer
from raysuite.orchestrate.leaving_nodes import reporting, with_fewer
from raysuite.orchestrate.ray_cluster import Capacity, check_listening
from raysuite.orchestrate.script_launch import ScriptRuns
from raysuite.plan import RunPlan, groups
from raysuite.records import BatchFound, Journal, Results, RunFailed
from raysuite.records.ends import is_left
from raysuite.records.node_checks import FEWEST, findings, write_checks
from raysuite.records.node_checks import FILE as NODES
from raysuite.spec import Document
from raysuite.train.stop_together import Stop

# Whether an error of a trainer is the end of the cluster's head.
#
# Its processes end one after the other, and the driver, which is one of the last, sees it as an
# actor that is unavailable.

PATIENCE_S = 10.0
"""How long the head may take to end after the first of its processes."""
_CONNECT_S = 3.0
_MEASURING_S = 60.0
"""How long each of the two parts of the nodes' check may take; both take some seconds."""


def check_head() -> None:
    """Raise HeadLostError where Ray's head is ending, or has ended."""
    import ray

    wait_while_reachable(ray.get_runtime_context().gcs_address, PATIENCE_S)


def wait_while_reachable(address: str, patience_s: float) -> None:
    """Raise HeadLostError where HOST:PORT is closed, or closes within some seconds."""
    end = time.monotonic() + patience_s
    while True:
        try:
            check_listening(address, _CONNECT_S)
        except OSError as error:
            raise HeadLostError(
                f"Ray's head at {address} is gone ({error}); the suite resumes when the "
                "cluster's head is started again, or by `raysuite run --resume-from RESULTS`"
            ) from error
        if time.monotonic() > end:
            return
        time.sleep(0.5)


_POLL_SECONDS = 0.5
_ENDING_S = 20.0
"""How long Ray may take to end workers that did not stop in time."""
_SHUTDOWN_S = 3.0
"""How long `leave` may take."""
_abandoned: list[list[BaseException]] = []
"""Exceptions of threads that are no longer waited for, kept until this process ends: they refer to
Ray's objects, and a process that frees one while Ray shuts down is ended by Ray, with code 1."""


def create(document: Document, plans: Sequence[RunPlan], root: Path) -> Results:
    """A results folder ROOT/NAME/DATE-TIME for a suite that begins now, with its spec and plans."""
    results = Results.create(root / plans[0].spec.name)
    write_whole(results.folder / "spec.yaml", document.text.encode())
    results.write_plans([plan.model_dump(mode="json") for plan in plans])
    return results


def latest(name: str, root: Path) -> Results:
    """The newest results of an experiment. Raises UserError where there are none."""
    try:
        return Results.open((root / name).absolute())
    except UserError as error:
        raise UserError(
            f"nothing to resume: {root / name} holds no results; leave --resume out"
        ) from error


def planned(results: Results) -> list[RunPlan]:
    """The runs that were decided when the suite began."""
    return [RunPlan.model_validate(plan) for plan in results.plans()]


def reset_failures(plans: Sequence[RunPlan], results: Results) -> None:
    """Let runs that failed be run again from the beginning; their journals are kept beside the new
    ones, which begin with how the batch was found, where it was."""
    from raysuite.train.checkpoint import remove_checkpoint  # and torch

    for plan in plans:
        records = results.records(plan.run_id)
        if isinstance(results.end_of(plan.run_id), RunFailed):
            remove_checkpoint(checkpoint_folder(results, plan.run_id))
            file = results.journal_file(plan.run_id)
            file.rename(file.with_name(f"journal.failed-{int(time.time())}.jsonl"))
            for record in records:
                if isinstance(record, BatchFound):
                    Journal(file).write(record)


@dataclass(frozen=True)
class Listener:
    """Callbacks of a suite or a sweep under way."""

    requested_stop: Callable[[], Stop | None]
    """About twice a second."""
    poll: Callable[[], None] = lambda: None
    """About twice a second while runs are under way."""
    say: Callable[[str], None] = lambda line: None
    """A line of text: nodes that are lost, or join."""
    added: Callable[[RunPlan], None] = lambda plan: None
    """A run that replaces one whose node stayed away."""


def run(
    plans: Sequence[RunPlan],
    results: Results,
    nodes: int,
    listener: Listener,
    on_ray: bool = True,
) -> Stop | None:
    """Run what has not finished yet; the request that stopped it, if one did before the end.

    A group whose workers cannot be kept alive has its unfinished runs recorded as lost, and the
    next group continues. `nodes`: how many the cluster had at the beginning. Scripts need no Ray:
    without it torch's launcher runs them here.
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
            # no waiting if no node returned the last time, and none has since
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
            missing = nodes_gone(error)
            if missing is None and on_ray and _unfinished(unfinished, results):
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
    """Keep the figures of every node, and name those that are slow, before the runs."""
    from ray.exceptions import RayError

    from raysuite.orchestrate.node_check import check_nodes  # and torch

    try:
        rows = check_nodes(folder, _MEASURING_S)
    except RayError as error:  # a node is lost or busy: the runs report that themselves
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
    work: Any,
    results: Results,
    listener: Listener,
    shut_down: Callable[[], None] | None = None,
) -> tuple[Exception | None, Stop | None]:
    """Run a trainer, or a tuner, to its end.

    Return the exception that ended it, and the request to stop; None where there was none.

    NodeKeeper has workers ended that have not stopped in time. If Ray does not respond, or after
    Ctrl-C, they end only when this process shuts down its Ray. `shut_down`,
    called at the end in any case, stops threads that call Ray.
    """
    ended: list[BaseException] = []
    # a thread is no longer `alive` for whom Ctrl-C reached while he joined it (bpo-45274)
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
    # in a thread: Ray's own handler of Ctrl-C waits for the workers, ours ends them
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
                listener.say("the workers did not stop in time: their last checkpoint counts")
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
