"""Where a cluster's agents run: what the client asks of SLURM and of this machine alike."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from raysuite.cluster.files import Cluster
from raysuite.cluster.folder import ClusterFolder

JobPhase = Literal["waiting", "running", "gone", "unknown"]
"""`unknown`: nobody answered who could tell, or it is a local cluster of another host."""
_LOOK_EACH_S = 0.5
_FIRST_PAUSE_S = 3.0


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

    def states(self, clusters: Sequence[Cluster]) -> list[JobState]:
        """What became of each cluster's job, by a single query."""

    def end(self, cluster: Cluster) -> None:
        """Ask the agents to end."""

    def kill(self, cluster: Cluster) -> None:
        """End what did not end when it was asked to."""


def backend_of(cluster: Cluster) -> Backend:
    """The backend that runs this cluster's site."""
    if cluster.backend == "slurm":
        from raysuite.cluster.squeue import SlurmBackend

        return SlurmBackend()
    from raysuite.cluster.local import LocalBackend

    return LocalBackend()


def job_states(clusters: Sequence[Cluster]) -> list[JobState]:
    """What became of each cluster's job, by one query for each kind of site."""
    found: dict[str, JobState] = {}
    for kind in ("local", "slurm"):
        of_kind = [cluster for cluster in clusters if cluster.backend == kind]
        if of_kind:
            states = backend_of(of_kind[0]).states(of_kind)
            found |= {cluster.name: state for cluster, state in zip(of_kind, states, strict=True)}
    return [found[cluster.name] for cluster in clusters]


def watch(folder: ClusterFolder, cluster: Cluster, longest_s: float) -> Iterator[JobState]:
    """The state of a job, each 0.5 s, for as long as the caller takes it.

    SLURM's controller is asked less and less often, down to once in `longest_s` seconds, for sites
    block users who ask all the time. A job that waits is also asked about as soon as its log has
    changed: slurmd opens it when the job starts.
    """
    job, asked, pause, log = JobState("unknown"), -math.inf, 0.0, _stamp(folder)
    while True:
        now, changed = time.monotonic(), job.phase == "waiting" and _stamp(folder) != log
        if changed or now - asked >= pause or cluster.backend == "local":
            pause = min(2 * pause, longest_s) if not changed and pause else _FIRST_PAUSE_S
            asked, log, (job,) = now, _stamp(folder), job_states([cluster])
        yield job
        time.sleep(_LOOK_EACH_S)


def _stamp(folder: ClusterFolder) -> tuple[int, int]:
    try:
        found = folder.slurm_log.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
