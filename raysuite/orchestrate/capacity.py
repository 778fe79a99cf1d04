"""Number of workers that fit on a cluster, or on this machine."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from raysuite.plan.resolve import local_gpus


def alive_nodes() -> list[dict[str, Any]]:
    """The nodes that Ray counts as alive, as `ray.nodes` describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


@dataclass(frozen=True)
class Node:
    """The resources of one node."""

    cpus: float
    gpus: float
    memory: float = math.inf
    """Bytes of memory that Ray can allocate on the node."""


@dataclass(frozen=True)
class Capacity:
    """The nodes of a cluster, or this machine, and their resources."""

    each: tuple[Node, ...]
    place: str = "the cluster"

    @classmethod
    def here(cls) -> Capacity:
        """The resources of this machine, found without Ray."""
        cpus = float(len(os.sched_getaffinity(0)))
        return cls((Node(cpus, float(local_gpus())),), "this machine")

    @classmethod
    def now(cls) -> Capacity:
        """The nodes that Ray counts as alive."""
        alive = (node["Resources"] for node in alive_nodes())
        return cls(
            tuple(
                Node(has.get("CPU", 0.0), has.get("GPU", 0.0), has.get("memory", math.inf))
                for has in alive
            )
        )

    @property
    def cpus(self) -> float:
        return sum(node.cpus for node in self.each)

    @property
    def gpus(self) -> float:
        return sum(node.gpus for node in self.each)

    @property
    def nodes(self) -> int:
        return len(self.each)

    def holds(self, cpus: int, gpu: bool) -> int:
        """Number of workers that fit; each needs `cpus` CPUs, and a GPU if `gpu`, on one node."""
        return sum(
            min(int(node.cpus // cpus), int(node.gpus) if gpu else int(node.cpus))
            for node in self.each
        )
