"""The client's interface to SLURM and to this machine: jobs, their states, and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Cluster

JobPhase = Literal["waiting", "running", "gone", "unknown"]
"""`unknown`: SLURM did not answer, or it is a local cluster of another host."""


@dataclass(frozen=True)
class JobState:
    """What is known of the allocation, or of the local agent."""

    phase: JobPhase
    state: str = ""
    """SLURM's state, such as PENDING."""
    reason: str = ""
    """SLURM's reason for waiting, such as Priority or Resources."""
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
        """The states of the jobs; a list as long as `clusters`, from one query for all."""

    def end(self, cluster: Cluster) -> None:
        """Ask the agents to end."""

    def kill(self, cluster: Cluster) -> None:
        """Kill what did not end when requested."""


class State(StrEnum):
    """The result of a check."""

    WORKS = "works"
    UNSURE = "unsure"
    """It cannot be known from here; the cluster's start will show it."""
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One check of a site: its subject, its result, and how to fix it where it is wrong."""

    what: str
    state: State
    note: str = ""
    fix: str = ""


def works(what: str, note: str = "") -> Finding:
    """The check passed."""
    return Finding(what, State.WORKS, note)


def unsure(what: str, note: str, fix: str = "") -> Finding:
    """It cannot be known from here."""
    return Finding(what, State.UNSURE, note, fix)


def wrong(what: str, note: str, fix: str) -> Finding:
    """A cluster cannot start with this."""
    return Finding(what, State.WRONG, note, fix)
