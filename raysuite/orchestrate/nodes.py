"""Nodes that go away: what Ray Train waits for, and what the driver tells of them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

from raysuite.errors import RunError
from raysuite.orchestrate.cluster import Capacity
from raysuite.orchestrate.stopping import told
from raysuite.plan import RunPlan
from raysuite.plan.elastic import smaller

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

_LOOK_S = 1.0
_WATCH_S = 2.0
_VERDICT_S = 40.0
"""Ray counts a node that fell silent as dead after some 25 s (its gcs_server's health checks)."""


class NodesGoneError(RunError):
    """What is left of the cluster does not hold the run's workers, and nothing came back."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class StoppedWaitingError(RunError):
    """The suite was asked to stop while workers were waited for."""


@dataclass(frozen=True)
class Need:
    """What the workers of a group occupy."""

    workers: int
    cpus: int
    """Of each worker."""
    gpu: bool

    @classmethod
    def of(cls, plan: RunPlan) -> Need:
        """The need of a run, which is that of its whole group."""
        return cls(plan.workers, plan.spec.resources.cpus_per_worker, plan.device == "gpu")

    def fit(self, capacity: Capacity) -> int:
        """How many of the workers the cluster holds."""
        most = int(capacity.cpus // self.cpus)
        return min(self.workers, most, int(capacity.gpus) if self.gpu else most)

    def __str__(self) -> str:
        each = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}{' and a GPU' if self.gpu else ''}"
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        return f"{workers} with {each} each" if self.workers > 1 else f"{workers} with {each}"


def capacity() -> Capacity:
    """What the nodes that are alive have."""
    total = ray.cluster_resources()
    alive = sum(node["Alive"] for node in ray.nodes())
    return Capacity(total.get("CPU", 0.0), total.get("GPU", 0.0), alive)


def with_fewer(plan: RunPlan, index: int) -> RunPlan | None:
    """The run with the workers that fit now, where its spec allows that; None otherwise."""
    if not plan.spec.resources.elastic:
        return None
    left = capacity()
    return smaller(plan, Need.of(plan).fit(left), int(left.gpus), index)


class NodeKeeper(ControllerCallback, WorkerGroupCallback):
    """In Ray Train's controller: lets workers start when the cluster holds them, and knows which
    nodes they were on.

    Ray Train itself would ask for their places minute by minute, ten times.
    """

    def __init__(self, need: Need, wait_s: float, results: Path) -> None:
        self._need = need
        self._wait_s = wait_s
        self._results = results
        self._hosts: dict[str, str] = {}

    def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> None:
        """Wait until the cluster holds the workers. Raises NodesGoneError, StoppedWaitingError."""
        deadline = time.monotonic() + self._wait_s
        while (fit := self._need.fit(left := capacity())) < self._need.workers:
            if told(self._results) is not None:
                raise StoppedWaitingError("stopped while nodes were waited for")
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

    def lost(self, patient: bool) -> list[str]:
        """The hosts of the last workers that are dead; `patient` waits until Ray can know it."""
        deadline = time.monotonic() + (_VERDICT_S if patient and len(self._hosts) > 1 else 0.0)
        while True:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            lost = sorted({host for node, host in self._hosts.items() if node not in alive})
            if lost or time.monotonic() >= deadline:
                return lost
            time.sleep(_LOOK_S)


class NodeWatch:
    """Tells which nodes leave and join, as lines for a person.

    Ray is asked in a thread: while its head is away, it does not answer. Where one node is all
    that there is, it is not asked at all.
    """

    def __init__(self, nodes: int) -> None:
        self._many = nodes > 1
        self._known: dict[str, str] | None = None
        self._lines: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nodes", daemon=True)

    def __enter__(self) -> NodeWatch:
        if self._many:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def news(self) -> list[str]:
        """What has happened since the last call."""
        told, self._lines = self._lines, []
        return told

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_S):
            try:
                nodes = ray.nodes()
            except Exception:  # whatever Ray throws while it ends
                continue
            self.look(nodes)

    def look(self, nodes: list[dict[str, Any]]) -> None:
        """Compare `ray.nodes()` with what was known."""
        now = {n["NodeID"]: n["NodeManagerHostname"] for n in nodes if n["Alive"]}
        if self._known is not None:
            for node in self._known.keys() - now.keys():
                self._lines.append(f"node lost: {self._known[node]}; {len(now)} left")
            for node in now.keys() - self._known.keys():
                self._lines.append(f"node joined: {now[node]}; {len(now)} are there")
        self._known = now
