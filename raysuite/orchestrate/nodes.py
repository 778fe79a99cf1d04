"""Nodes that leave the cluster: what the driver knows and prints of them.

Ray is imported on use: it reads its settings then, which `cluster.connect` makes before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from raysuite.errors import RunError
from raysuite.orchestrate.cluster import Capacity
from raysuite.plan import RunPlan
from raysuite.plan.resolve import smaller

_WATCH_S = 2.0


class NodesGoneError(RunError):
    """The remaining nodes cannot hold the run's workers, and no node returned."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


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
        return min(self.workers, capacity.holds(self.cpus, self.gpu))

    def __str__(self) -> str:
        each = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}{' and a GPU' if self.gpu else ''}"
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        return f"{workers} with {each} each" if self.workers > 1 else f"{workers} with {each}"


def with_fewer(plan: RunPlan, index: int) -> RunPlan | None:
    """The run with the workers that fit now, where its spec allows that; None otherwise."""
    if not plan.spec.resources.elastic:
        return None
    left = Capacity.now()
    return smaller(plan, Need.of(plan).fit(left), int(left.gpus), index)


class NodeWatch:
    """Reports which nodes leave and join, as text.

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
        import ray

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
