"""Where a cluster's agents run: what the client asks of SLURM and of this machine alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from raysuite.cluster.files import Cluster
from raysuite.cluster.folder import ClusterFolder

JobPhase = Literal["waiting", "running", "gone", "unknown"]
"""`unknown`: nobody answered who could tell, or it is a local cluster of another host."""


@dataclass(frozen=True)
class JobState:
    """What is known of the allocation, or of the local agent."""

    phase: JobPhase
    state: str = ""
    """SLURM's own word, such as PENDING."""
    reason: str = ""
    """SLURM's own word for why it waits, such as Priority or Resources."""
    hosts: tuple[str, ...] = ()
    nodes: int = 0
    """Of the allocation, where it is known."""


class Backend(Protocol):
    """Starts, watches and ends the agents of clusters."""

    ask_s: tuple[float, float]
    """Seconds between two questions for a state, at first and at most, where one waits long."""

    def start(self, folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> Cluster:
        """Start `command` once on each node; the cluster with its job's id."""

    def states(self, clusters: Sequence[Cluster]) -> list[JobState]:
        """What became of the jobs; a list as long as `clusters`, from one question for all."""

    def end(self, cluster: Cluster) -> None:
        """Ask the agents to end."""

    def kill(self, cluster: Cluster) -> None:
        """End what did not end when it was asked to."""


def backend_of(cluster: Cluster) -> Backend:
    """The backend that runs this cluster's site."""
    if cluster.backend == "slurm":
        from raysuite.cluster.slurm import SlurmBackend

        return SlurmBackend()
    from raysuite.cluster.local import LocalBackend

    return LocalBackend()


def state_of(cluster: Cluster) -> JobState:
    """What became of a cluster's job: asked now."""
    return backend_of(cluster).states([cluster])[0]


class Watch:
    """What became of a cluster's job, asked ever more seldom: each `squeue` costs slurmctld time,
    and sites block users who ask for it in a loop."""

    def __init__(self, cluster: Cluster, first_s: float | None = None) -> None:
        """`first_s`: seconds between the first two questions, at most; then twice as many."""
        self._cluster, self._backend = cluster, backend_of(cluster)
        self._first_s, self._most_s = self._backend.ask_s
        if first_s is not None:
            self._first_s = min(first_s, self._first_s)
        self._wait_s = self._next = 0.0
        self._known = JobState("unknown")
        self._seen: object = None

    def state(self, news: object = None) -> JobState:
        """The state, which is asked for at once where `news` is another than at the last call."""
        now = time.monotonic()
        if now >= self._next or news != self._seen:
            before, self._seen = self._known, news
            (self._known,) = self._backend.states([self._cluster])
            again = before.phase == self._known.phase and self._wait_s
            self._wait_s = min(2 * self._wait_s, self._most_s) if again else self._first_s
            self._next = time.monotonic() + self._wait_s
        return self._known
