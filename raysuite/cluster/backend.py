"""The interface that each kind of site implements for clients, and the results of site checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Cluster

JobPhase = Literal["waiting", "running", "gone", "unknown"]
"""`unknown`: SLURM did not answer, or the cluster's process is on another host."""


@dataclass(frozen=True)
class JobState:
    """The state of a cluster's SLURM job or, without SLURM, of its process."""

    phase: JobPhase
    state: str = ""
    """SLURM's state, such as PENDING."""
    reason: str = ""
    """SLURM's reason for waiting, such as Priority or Resources."""
    hosts: tuple[str, ...] = ()
    nodes: int = 0
    """Number of nodes in the allocation; 0 if unknown."""


class Backend(Protocol):
    """Starts, watches and ends the agents of clusters."""

    ask_s: tuple[float, float]
    """Seconds between two queries of a job's state: the first interval, and the longest."""

    def start(self, folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> Cluster:
        """Start `command` once on each node; return `cluster` with the id of its job."""

    def states(self, clusters: Sequence[Cluster]) -> list[JobState]:
        """The state of each cluster's job, in order; one query asks for all states."""

    def end(self, cluster: Cluster) -> None:
        """Request the end of the agents."""

    def kill(self, cluster: Cluster) -> None:
        """Kill the processes that did not end on request."""


class State(StrEnum):
    """The result of a check."""

    WORKS = "works"
    UNSURE = "unsure"
    """The check is not possible from this host; the cluster's start will show the result."""
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One check of a site: its subject, its result, and for a failed check how to fix it."""

    what: str
    state: State
    note: str = ""
    fix: str = ""


def works(what: str, note: str) -> Finding:
    """A check that passed."""
    return Finding(what, State.WORKS, note)


def unsure(what: str, note: str, fix: str = "") -> Finding:
    """A check that is not possible from this host."""
    return Finding(what, State.UNSURE, note, fix)


def wrong(what: str, note: str, fix: str) -> Finding:
    """A check that failed: a cluster cannot start."""
    return Finding(what, State.WRONG, note, fix)
