"""Count the workers that still fit after nodes left the cluster; report lost and new nodes.

Ray is imported on use, after `ray_cluster.connect` has set Ray's environment variables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from raysuite.errors import RunError
from raysuite.orchestrate.capacity import Capacity, alive_nodes
from raysuite.plan import RunPlan
from raysuite.plan.resolve import smaller

_WATCH_S = 2.0


class NodesGoneError(RunError):
    """The remaining nodes have too few resources for the run's workers, and no node returned."""


@dataclass(frozen=True)
class Need:
    """The resources that the workers of a group need."""

    workers: int
    cpus: int
    """CPUs per worker."""
    gpu: bool

    @classmethod
    def of(cls, plan: RunPlan) -> Need:
        """The resources that the workers of a run need."""
        return cls(plan.workers, plan.spec.resources.cpus_per_worker, plan.device == "gpu")

    def fit(self, capacity: Capacity) -> int:
        """The number of these workers that fit on the cluster."""
        return min(self.workers, capacity.holds(self.cpus, self.gpu))

    def __str__(self) -> str:
        each = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}{' and a GPU' if self.gpu else ''}"
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        return f"{workers} with {each} each" if self.workers > 1 else f"{workers} with {each}"


def with_fewer(plan: RunPlan, index: int) -> RunPlan | None:
    """The run with as many workers as fit now, if its spec allows fewer; else None."""
    if not plan.spec.resources.elastic:
        return None
    left = Capacity.now()
    return smaller(plan, Need.of(plan).fit(left), int(left.gpus), index)


@contextmanager
def reporting(nodes: int, say: Callable[[str], None]) -> Iterator[None]:
    """Report nodes that leave or join a cluster that had `nodes` nodes at the beginning.

    Ray is queried in a thread, because a query does not return if the head has died. With one node,
    Ray is not queried.
    """
    ended = threading.Event()

    def watch() -> None:
        known: dict[str, str] = {}
        while not ended.wait(_WATCH_S):
            with suppress(Exception):  # any error that Ray raises while it shuts down
                alive = alive_nodes()
                now = {node["NodeID"]: node["NodeManagerHostname"] for node in alive}
                for line in changes(known or now, now):
                    say(line)
                known = now

    if nodes > 1:
        threading.Thread(target=watch, name="nodes", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """A line for each node that was lost or has joined, from two dicts of node id -> host."""
    lost = [f"node lost: {before[node]}; {len(now)} left" for node in before.keys() - now.keys()]
    joined = [
        f"node joined: {now[node]}; now {len(now)} node(s)" for node in now.keys() - before.keys()
    ]
    return lost + joined
