"""What became of a cluster: its job, its nodes, and what Ray counts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

from raysuite.cluster.backend import JobState, backend_of, state_of
from raysuite.cluster.files import Alive, Cluster, Head, Node
from raysuite.cluster.folder import ClusterFolder, all_folders, folder_of
from raysuite.errors import UserError

State = Literal["waiting", "starting", "up", "stopping", "ended", "failed", "stale", "unknown"]
"""`waiting`: for an allocation; `stale`: gone without a word, as after a power cut."""
_ENDS = {
    "down": "taken down",
    "time_limit": "the time limit came",
    "preempted": "preempted, or ended from outside",
}


@dataclass(frozen=True)
class Status:
    """A cluster at one moment."""

    cluster: Cluster
    state: State
    job: JobState
    nodes: tuple[Node, ...]
    """Those of the present, or last, start."""
    head: Head | None
    alive: Alive | None
    why: str

    @property
    def lives(self) -> bool:
        """Whether processes of it run, or will."""
        return self.state in ("waiting", "starting", "up", "stopping", "unknown")

    @property
    def wanted(self) -> int:
        """Nodes that are waited for: those of the allocation, where it is known."""
        return max(self.cluster.nodes, self.job.nodes)

    @property
    def alive_count(self) -> int:
        return len(self.alive.addresses) if self.alive else 0

    def is_alive(self, node: Node) -> bool:
        """Whether Ray counts this node as alive."""
        return self.alive is not None and node.address in self.alive.addresses


def status_of(folder: ClusterFolder, job: JobState | None = None) -> Status:
    """Look once; `job` is its job's state, where it is known. Raises UserError where there is no
    cluster."""
    cluster = folder.cluster()
    job = job or state_of(cluster)
    head, alive = folder.head(), folder.alive()
    nodes = tuple(folder.nodes())
    if head is not None:
        nodes = tuple(node for node in nodes if node.incarnation == head.incarnation)
        if alive is not None and alive.incarnation != head.incarnation:
            alive = None
    state, why = _judge(folder, cluster, job, nodes, head, alive)
    return Status(cluster, state, job, nodes, head, alive, why)


def all_status() -> list[Status]:
    """Every cluster, the newest first; a folder that cannot be read is left out."""
    known: dict[str, list[tuple[ClusterFolder, Cluster]]] = {}
    for folder in all_folders():
        with contextlib.suppress(UserError):
            cluster = folder.cluster()
            known.setdefault(cluster.backend, []).append((folder, cluster))
    found = []
    for pairs in known.values():
        clusters = [cluster for _, cluster in pairs]
        states = backend_of(clusters[0]).states(clusters)
        for (folder, _), state in zip(pairs, states, strict=True):
            with contextlib.suppress(UserError):
                found.append(status_of(folder, state))
    return sorted(found, key=lambda status: -status.cluster.created)


def check_here(status: Status) -> None:
    """Raise UserError for a local cluster that may live on another host than this."""
    cluster = status.cluster
    if cluster.backend == "local" and status.state == "unknown":
        raise UserError(
            f"the cluster {cluster.name!r} runs on {cluster.host}; go there, or start one of "
            "another name here; once that host is gone for good, "
            f"`rm {folder_of(cluster.name).path}/cluster.json` forgets it"
        )


def find_folder(name: str | None) -> ClusterFolder:
    """The folder of the cluster `name`; without a name, of the only one that lives.

    Raises UserError for a name that is not known, where none or several live, and where the
    folder of all clusters is another user's.
    """
    try:
        known = {folder.name: folder for folder in all_folders()}
    except PermissionError as error:
        raise UserError(
            f"{error.filename} cannot be read: it is closed to you; RAYSUITE_HOME names a folder "
            "of your own"
        ) from error
    if name is not None:
        if name not in known:
            raise UserError(
                f"no cluster is called {name!r}; {_listed('known are', known)}; `raysuite cluster "
                "up` starts one"
            )
        return known[name]
    living = [status.cluster.name for status in all_status() if status.lives]
    if len(living) == 1:
        return known[living[0]]
    if living:
        raise UserError(f"{len(living)} clusters are there; name one of {', '.join(living)}")
    raise UserError("no cluster is there; `raysuite cluster up` starts one")


def _judge(
    folder: ClusterFolder,
    cluster: Cluster,
    job: JobState,
    nodes: tuple[Node, ...],
    head: Head | None,
    alive: Alive | None,
) -> tuple[State, str]:
    stop = folder.stop()
    first = next((node for node in nodes if node.index == 0), None)
    if job.phase == "unknown" and not _has_said_its_end(folder, cluster, first):
        return "unknown", job.reason
    if job.phase == "waiting":
        return "waiting", job.reason
    if job.phase == "running":
        if stop is not None:
            return "stopping", _ENDS[stop.reason]
        joined = first is not None and first.state == "joined" and alive is not None
        return ("up" if joined else "starting"), ""
    if first is not None and first.state == "failed":
        return "failed", first.message
    if stop is not None:
        return "ended", _ENDS[stop.reason]
    if first is not None and first.state == "ended":
        return "ended", ""
    if job.state:
        return "failed", f"SLURM says {job.state} ({job.reason})"
    return "stale", f"gone without a word; {_what_it_left(folder, cluster)}"


def _has_said_its_end(folder: ClusterFolder, cluster: Cluster, first: Node | None) -> bool:
    """Whether a cluster on another host has ended; SLURM's may start again after that."""
    ended = first is not None and first.state in ("ended", "failed")
    return cluster.backend == "local" and (ended or folder.over.exists())


def _what_it_left(folder: ClusterFolder, cluster: Cluster) -> str:
    if cluster.backend == "local":
        return "what it left is removed by `raysuite cluster down`"
    return (
        "`raysuite cluster down` forgets it; what it left on its nodes (`temp` of each "
        f"{folder.path}/nodes/HOST.json) goes with the next cluster of that name there, or by hand"
    )


def _listed(words: str, names: dict[str, ClusterFolder]) -> str:
    return f"{words} {', '.join(names)}" if names else "none is known"
