"""Supervise a worker group: find the cause of a failure, wait for nodes, and enforce deadlines.

An exception in a rank does not show whether this rank failed or another rank died during a
collective. Ray Train reports both: the exception of each rank, and which processes died.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from raysuite.errors import RunError, StorageError
from raysuite.orchestrate.capacity import Capacity, alive_nodes
from raysuite.orchestrate.failures import record_failure
from raysuite.orchestrate.leaving_nodes import Need, NodesGoneError
from raysuite.orchestrate.stopping import is_late, requested_stop
from raysuite.plan import RunPlan
from raysuite.records import FailReason, Results
from raysuite.records.ends import is_left
from raysuite.train.out_of_memory import kernel_kills, ray_out_of_memory


class BrokenRunError(Exception):
    """A rank's exception as text, because a user's own exceptions cannot always be pickled."""

    def __init__(
        self,
        message: str,
        detail: str,
        peer_lost: bool,
        out_of_memory: bool = False,
        disk_full: bool = False,
    ) -> None:
        super().__init__(message, detail, peer_lost, out_of_memory, disk_full)
        self.message = message
        self.detail = detail
        self.peer_lost = peer_lost
        """Whether a collective failed; the cause may then be another rank."""
        self.out_of_memory = out_of_memory
        self.disk_full = disk_full


class FailureRecorder:
    """Writes RunFailed for a run that raised an exception, or whose workers died too often.

    A group's runs are executed in order, so the first run that has not ended is the current run.
    """

    def __init__(self, plans: Sequence[RunPlan], results: Path, nodes: NodeKeeper) -> None:
        self._plans = plans
        self._results = Results(results)
        self._nodes = nodes
        self._deaths: Counter[str] = Counter()
        self._kernel_kills = kernel_kills()

    def follow(self, plans: Sequence[RunPlan]) -> None:
        """From now on, record failures of these runs."""
        self._plans = plans

    def after_exception(self, worker_exceptions: Mapping[int, Exception]) -> None:
        """Record the failure of the current run, unless the run is retried. Called when the workers
        have ended. `worker_exceptions`: rank -> exception.

        Raises StorageError, and records no failure, if a rank could not write the results.
        """
        before, self._kernel_kills = self._kernel_kills, kernel_kills()
        killed = 0 if before is None else (self._kernel_kills or before) - before
        plan = next((p for p in self._plans if is_left(self._results.end_of(p.run_id))), None)
        if plan is None:
            return
        full = {r: e for r, e in worker_exceptions.items() if _out_of_memory(e)}
        if full:  # the next attempt would need as much memory
            record_failure(plan, self._results, "out_of_memory", *_first(full))
            return
        raised = {r: e for r, e in worker_exceptions.items() if isinstance(e, BrokenRunError)}
        storage_error = {rank: error for rank, error in raised.items() if error.disk_full}
        if storage_error:
            raise StorageError(_first(storage_error)[0])
        own = {rank: error for rank, error in raised.items() if not error.peer_lost}
        if own and len(raised) == len(worker_exceptions):  # no process died
            record_failure(plan, self._results, "error", *_first(own))
            return
        dead = {r: e for r, e in worker_exceptions.items() if r not in raised}
        if killed > 0:
            message, detail = _first(dead or raised)
            message = f"the kernel killed {killed} process(es) for lack of memory; {message}"
            record_failure(plan, self._results, "out_of_memory", message, detail)
            return
        self._deaths[plan.run_id] += 1
        attempts = self._deaths[plan.run_id]
        if attempts > plan.spec.resources.retries:
            message, detail = _first(dead or raised)
            times = "its only attempt" if attempts == 1 else f"each of {attempts} attempts"
            # ranks that lost a peer fail before Ray detects whether a node was lost
            hosts = self._nodes.lost(patient=not dead)
            if hosts:
                message = f"in the last attempt, Ray also lost node {', '.join(hosts)}"
            reason: FailReason = "node_lost" if hosts else "lost"
            record_failure(
                plan, self._results, reason, f"its workers died in {times}; {message}", detail
            )


def _out_of_memory(error: Exception) -> bool:
    if isinstance(error, BrokenRunError):
        return error.out_of_memory
    return bool(ray_out_of_memory(str(error)))


def _first(errors: Mapping[int, Exception]) -> tuple[str, str]:
    """The error of the lowest rank, as one line and as its whole text."""
    rank = min(errors)
    error = errors[rank]
    if isinstance(error, BrokenRunError):
        return f"rank {rank}: {error.message}", error.detail
    if full := ray_out_of_memory(str(error)):
        return f"rank {rank}: {full}", str(error)
    # the first sentence of Ray's last line has the reason; the rest only names logs to read
    lines = [type(error).__name__, *str(error).strip().splitlines()]
    return f"rank {rank}: {lines[-1].strip().partition('. ')[0]}", str(error)


_POLL_S = 1.0
_VERDICT_S = 40.0
"""Seconds to wait until Ray has detected a dead node: Ray considers a silent node dead after about
25 s (gcs_server's health checks)."""


class StoppedError(RunError):
    """The suite was asked to stop while it waited for nodes, or its workers stopped too late."""


class DeadlineError(RunError):
    """The runs exceeded their deadline."""


class NodeKeeper:
    """Waits until the cluster has the resources for the workers, and ends the workers at
    `deadline`, in seconds since 1970.

    Ray Train itself would request the workers' resources ten times, for a minute each, and then
    fail.
    """

    def __init__(
        self,
        need: Need,
        wait_s: float,
        results: Path,
        hosts_file: Path,
        run_ids: Sequence[str],
        deadline: float | None,
    ) -> None:
        self.hosts_file = hosts_file
        """A file that is written when the workers have started: node id -> host."""
        self._need = need
        self._wait_s = wait_s
        self._results = results
        self._run_ids = run_ids
        self._deadline = deadline

    def follow(self, plans: Sequence[RunPlan], deadline: float | None) -> None:
        """From now on, wait for nodes while one of these runs has not ended, and end the workers
        at `deadline`."""
        self._run_ids = [plan.run_id for plan in plans]
        self._deadline = deadline

    def wait(self) -> bool:
        """Wait until the cluster has the resources for the workers. Return False if all runs have
        ended: new workers would find nothing to do. Raises NodesGoneError, StoppedError,
        DeadlineError.
        """
        results = Results(self._results)
        if not any(is_left(results.end_of(each)) for each in self._run_ids):
            return False
        deadline = time.monotonic() + self._wait_s
        while (fit := self._need.fit(left := Capacity.now())) < self._need.workers:
            if requested_stop(self._results) is not None:
                raise StoppedError("stopped while waiting for nodes")
            self._check_deadline()
            if time.monotonic() >= deadline:
                raise NodesGoneError(
                    f"{self._need} need more than the {left.nodes} node(s) that are left: "
                    f"{left.cpus:g} CPUs and {left.gpus:g} GPUs are enough for {fit} worker(s), "
                    f"and no node returned within {self._wait_s:g} s"
                )
            time.sleep(_POLL_S)
        return True

    def check(self) -> None:
        """Raise StoppedError if the workers were asked to stop but have not stopped in time, or
        DeadlineError if the deadline has passed. Both errors end the workers."""
        stop = requested_stop(self._results)
        if stop is not None and is_late(stop):
            raise StoppedError("the workers were asked to stop and did not stop in time")
        self._check_deadline()

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.time() > self._deadline:
            raise DeadlineError("the workers exceeded their time limit")

    def lost(self, patient: bool) -> list[str]:
        """The hosts of the dead nodes on which workers ran. With `patient`, give Ray time to
        detect these nodes."""
        hosts: dict[str, str] = json.loads(self.hosts_file.read_text("utf-8"))
        deadline = time.monotonic() + (_VERDICT_S if patient and len(hosts) > 1 else 0.0)
        while True:
            alive = {node["NodeID"] for node in alive_nodes()}
            lost = sorted({host for node, host in hosts.items() if node not in alive})
            if lost or time.monotonic() >= deadline:
                return lost
            time.sleep(_POLL_S)
