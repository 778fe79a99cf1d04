"""In Ray Train's controller: waits for nodes that went away, and ends workers that are late."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

from raysuite.errors import RunError
from raysuite.orchestrate.cluster import Capacity
from raysuite.orchestrate.nodes import Need, NodesGoneError
from raysuite.orchestrate.stopping import is_late, requested_stop
from raysuite.plan import RunPlan
from raysuite.records import Results

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

_LOOK_S = 1.0
_VERDICT_S = 40.0
"""Ray counts a node that fell silent as dead after some 25 s (its gcs_server's health checks)."""


class StoppedWaitingError(RunError):
    """The suite was asked to stop while workers were waited for."""


class LateError(RunError):
    """The workers were asked to stop and did not before the deadline."""


class DeadlineError(RunError):
    """The runs took longer than they may."""


class NothingLeftError(RunError):
    """All runs of the group have ended: new workers would find nothing to do."""


class NodeKeeper(ControllerCallback, WorkerGroupCallback):
    """In Ray Train's controller: lets workers start when the cluster holds them, and knows which
    nodes they were on. With a `deadline`, in seconds since 1970, it ends them then.

    Ray Train itself would ask for their places minute by minute, ten times.
    """

    def __init__(
        self,
        need: Need,
        wait_s: float,
        results: Path,
        run_ids: Sequence[str] = (),
        deadline: float | None = None,
    ) -> None:
        self._need = need
        self._wait_s = wait_s
        self._results = results
        self._run_ids = run_ids
        self._deadline = deadline
        self._hosts: dict[str, str] = {}

    def follow(self, plans: Sequence[RunPlan], deadline: float | None) -> None:
        """Other runs are at work from now on, and have to end by another deadline."""
        self._run_ids = [plan.run_id for plan in plans]
        self._deadline = deadline

    def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> None:
        """Wait until the cluster holds the workers.

        Raises NodesGoneError, StoppedWaitingError, NothingLeftError, DeadlineError.
        """
        results = Results(self._results)
        if self._run_ids and all(results.end_of(run_id) for run_id in self._run_ids):
            raise NothingLeftError("all runs have ended")
        deadline = time.monotonic() + self._wait_s
        while (fit := self._need.fit(left := Capacity.now())) < self._need.workers:
            if requested_stop(self._results) is not None:
                raise StoppedWaitingError("stopped while nodes were waited for")
            self._check_deadline()
            if time.monotonic() >= deadline:
                raise NodesGoneError(
                    f"{self._need} need more than the {left.nodes} node(s) that are left: "
                    f"{left.cpus:g} CPUs and {left.gpus:g} GPUs hold {fit}, and nothing came back "
                    f"within {self._wait_s:g} s"
                )
            time.sleep(_LOOK_S)

    def after_worker_group_start(self, worker_group: WorkerGroup) -> None:
        """Remember where the workers are."""
        placed = [worker.metadata for worker in worker_group.get_workers()]
        self._hosts = {each.node_id: each.hostname or each.node_ip for each in placed}

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """End workers that were asked to stop and did not, or that may not continue.

        Raises LateError then, or DeadlineError.
        """
        stop = requested_stop(self._results)
        if stop is not None and is_late(stop):
            raise LateError("the workers were asked to stop and did not in time")
        self._check_deadline()

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.time() > self._deadline:
            raise DeadlineError("the workers took longer than they may")

    def lost(self, patient: bool) -> list[str]:
        """The hosts of the last workers that are dead; `patient` waits until Ray can know it."""
        deadline = time.monotonic() + (_VERDICT_S if patient and len(self._hosts) > 1 else 0.0)
        while True:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            lost = sorted({host for node, host in self._hosts.items() if node not in alive})
            if lost or time.monotonic() >= deadline:
                return lost
            time.sleep(_LOOK_S)
