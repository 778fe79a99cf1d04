"""Where a cluster's agents run: what the client asks of SLURM and of this machine alike."""

from __future__ import annotations

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


class Backend(Protocol):
    """Starts, watches and ends the agents of one cluster."""

    def start(self, folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> Cluster:
        """Start `command` once on each node; the cluster with its job's id."""

    def state(self, cluster: Cluster) -> JobState:
        """What became of the job."""

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
