"""Start a cluster and wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raysuite.cluster.agent.leftovers import clear_local
from raysuite.cluster.backend import JobState, Watch, backend_of
from raysuite.cluster.files import Cluster, Timings
from raysuite.cluster.folder import ClusterFolder, folder_of, prepare
from raysuite.cluster.slurm import host_names
from raysuite.cluster.status import Status, check_here, status_of
from raysuite.errors import RaysuiteError, UserError

# Why a cluster did not come up: the nodes that are missing, and what their logs end with.

_LINES = 12
_READ_BYTES = 20_000


def why_not(folder: ClusterFolder, status: Status) -> str:
    """The message for a cluster that did not come up in time, or that ended before."""
    cluster = status.cluster
    lines = [f"the cluster {cluster.name!r} did not come up: {_in_short(status)}"]
    failed = [node for node in status.nodes if node.state == "failed"]
    lines += [f"{node.host} failed: {node.message}" for node in failed]
    missing = missing_nodes(status)
    if missing:
        lines.append(f"missing: {', '.join(missing)}")
    logs = [folder.log_of(name) for name in missing]
    for log in (*logs, folder.slurm_log, folder.logs / "agent.log"):
        tail = last_lines(log)
        if tail:
            lines += [f"the end of {log}:", *(f"  {line}" for line in tail)]
    return "\n".join(lines)


def missing_nodes(status: Status) -> list[str]:
    """The hosts of the allocation, or those that said something, that Ray does not count."""
    names = [name for each in status.job.hosts if each for name in _spelt(each)]
    there = {node.host for node in status.nodes if status.is_alive(node)}
    said = [node.host for node in status.nodes]
    return [name for name in names or said if name not in there]


def last_lines(log: Path) -> list[str]:
    """The last lines of a log, for a message; none where it is not there."""
    try:
        text = log.read_bytes()[-_READ_BYTES:].decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-_LINES:]


def _spelt(names: str) -> list[str]:
    return host_names(names) if "[" in names or "," in names else [names]


def _in_short(status: Status) -> str:
    if not status.lives:
        return f"{status.state}{f' ({status.why})' if status.why else ''}"
    waited = status.cluster.site.start_timeout_seconds
    return f"{status.alive_count} of {status.wanted} nodes joined within {waited} s"


_POLL_S = 0.5
_FAILED_FOR_S = 45.0
"""A node that failed may be started again by the batch script, which gives a step that broke 30 s;
not when it stays so."""


class NotStartedError(RaysuiteError):
    """The cluster did not come up; the message says which nodes are missing, and their logs."""


@dataclass(frozen=True)
class Progress:
    """How far `wait` has come."""

    job: JobState
    joined: int
    wanted: int
    seconds: float


class Patience:
    """How long a cluster that comes up is waited for. A job that is queued again begins anew."""

    def __init__(self, seconds: float) -> None:
        """`seconds` it may take from the start of its allocation."""
        self.running_since = 0.0
        """When its allocation was first seen to run, in seconds since 1970; 0 while it waits."""
        self._seconds = seconds
        self._failed_since = 0.0

    def is_over(self, status: Status, now: float) -> bool:
        """Whether it takes too long, or a node failed and nobody starts it again."""
        if status.job.phase == "waiting":
            self.running_since = self._failed_since = 0.0
        elif status.job.phase == "running" and not self.running_since:
            self.running_since = now
        if not self.running_since:
            return False
        # without a head they are those of an earlier start
        failed = status.head is not None and any(n.state == "failed" for n in status.nodes)
        self._failed_since = (self._failed_since or now) if failed else 0.0
        if failed and now - self._failed_since > _FAILED_FOR_S:
            return True
        return now - self.running_since > self._seconds


def start(
    cluster: Cluster,
    command: tuple[str, ...],
    resume: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> ClusterFolder:
    """Start `command`, the agent, on each node.

    What a local cluster of that name left when it was killed is taken over, or removed, first.
    Raises UserError where a cluster of that name lives, or may live on another host.
    """
    folder = folder_of(cluster.name)
    if (folder.path / "cluster.json").exists():
        status = status_of(folder)
        check_here(status)
        if status.lives:
            raise UserError(
                f"a cluster called {cluster.name!r} is there already ({status.state}); take it "
                f"down with `raysuite cluster down {cluster.name}`, or name another with --name"
            )
        for line in clear_local(folder, status.cluster, tell):
            tell(line)
    folder = prepare(cluster, resume)
    began = time.time()
    try:
        cluster = backend_of(cluster).start(folder, cluster, command)
    except BaseException:
        folder.forget_secrets()
        folder.forget(Cluster)
        raise
    folder.write(cluster)
    folder.write(Timings(seconds={"submit": round(time.time() - began, 3)}))
    return folder


def wait(folder: ClusterFolder, tell: Callable[[Progress], None] = lambda _: None) -> Status:
    """Wait until all nodes have joined.

    The site's start_timeout_seconds count from the start of the allocation: a queue may be long.
    Raises NotStartedError.
    """
    cluster = folder.cluster()
    began, patience = time.time(), Patience(cluster.site.start_timeout_seconds)
    watch = Watch(cluster)
    while True:
        heads = [node.incarnation for node in folder.nodes() if node.index == 0]
        status = status_of(folder, watch.state(heads))  # a head that starts: the job runs
        now = time.time()
        tell(Progress(status.job, status.alive_count, status.wanted, now - began))
        if not status.lives:
            raise NotStartedError(why_not(folder, status))
        is_over = patience.is_over(status, now)
        if status.state == "up" and status.alive_count >= status.wanted:
            _record_timings(folder, status, patience.running_since, now)
            return status
        if is_over:
            raise NotStartedError(why_not(folder, status_of(folder)))
        time.sleep(_POLL_S)


def _record_timings(
    folder: ClusterFolder, status: Status, running_since: float, now: float
) -> None:
    """Where the seconds went; clocks of several hosts are compared, which may differ a little."""
    seconds = dict(folder.timings())
    submitted = status.cluster.created + seconds.get("submit", 0.0)
    seconds["waiting"] = max(0.0, running_since - submitted)
    first = min((node.began for node in status.nodes if node.began), default=running_since)
    seconds["step"] = max(0.0, first - running_since)
    for what in ("python", "ray"):
        longest = max((node.seconds.get(what, 0.0) for node in status.nodes), default=0.0)
        seconds[what] = longest
    seconds["all"] = now - status.cluster.created
    folder.write(Timings(seconds={name: round(value, 3) for name, value in seconds.items()}))
