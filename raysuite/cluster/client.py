"""Start a cluster, query its state, and end it, from the client's side."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from raysuite.cluster import private
from raysuite.cluster.agent.leftovers import clear_local
from raysuite.cluster.backend import JobState
from raysuite.cluster.dashboard import RUNNING, Dashboard, NoAnswerError, RefusedError
from raysuite.cluster.folder import ClusterFolder, all_folders, folder_of, prepare
from raysuite.cluster.hosts import HostsBackend
from raysuite.cluster.local import LocalBackend
from raysuite.cluster.slurm import SlurmBackend, host_names
from raysuite.cluster.state_files import Alive, Cluster, Head, Node, Stop, Timings
from raysuite.errors import RaysuiteError, UserError

# The message for a cluster that did not come up: its missing nodes, and the ends of their logs.

_LINES = 12
_READ_BYTES = 20_000


def why_not(folder: ClusterFolder, status: Status) -> str:
    """The message for a cluster that did not come up in time, or that ended before it was up."""
    cluster = status.cluster
    lines = [f"the cluster {cluster.name!r} did not come up: {_in_short(status)}"]
    failed = [node for node in status.nodes if node.state == "failed"]
    lines += [f"{node.host} failed: {node.message}" for node in failed]
    missing = missing_nodes(status)
    if missing:
        lines.append(f"missing: {', '.join(missing)}")
    logs = [folder.log_of(name) for name in missing]
    for log in (*logs, folder.slurm_log, folder.logs / "agent.log"):
        if tail := _tail(log)[-_LINES:]:
            lines += [f"the end of {log}:", *(f"  {line}" for line in tail)]
    return "\n".join(lines)


def missing_nodes(status: Status) -> list[str]:
    """The hosts that Ray does not count as alive, among the hosts of the allocation or, if these
    are unknown, among the hosts with a state file."""
    names = [name for each in status.job.hosts for name in host_names(each)]
    there = {node.host for node in status.nodes if status.is_alive(node)}
    said = [node.host for node in status.nodes]
    return [name for name in names or said if name not in there]


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _READ_BYTES))
            return stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _in_short(status: Status) -> str:
    if not status.lives:
        return f"{status.state}{f' ({status.why})' if status.why else ''}"
    waited = status.cluster.site.start_timeout_seconds
    return f"{status.alive_count} of {status.wanted} nodes joined within {waited} s"


_POLL_S = 0.5
_FAILED_FOR_S = 45.0
"""Seconds within which the batch script should restart the agents after a node has failed; the
script waits 30 s for the end of the failed step."""


class NotStartedError(RaysuiteError):
    """The cluster did not come up; the message names missing nodes, with their logs."""


class Patience:
    """The time limit of a cluster's start. The limit starts again when the job is requeued."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: the limit, from the start of the cluster's allocation."""
        self.running_since = 0.0
        """Time at which the allocation was first seen running, in s since 1970; 0 before."""
        self._seconds = seconds
        self._failed_since = 0.0

    def is_over(self, status: Status, now: float) -> bool:
        """Whether the start takes too long, or a failed node was not restarted in time."""
        if status.job.phase == "waiting":
            self.running_since = self._failed_since = 0.0
        elif status.job.phase == "running" and not self.running_since:
            self.running_since = now
        if not self.running_since:
            return False
        # without a head, node states are outdated
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

    If a local cluster of that name was killed, its remaining processes are first ended and its
    temporary folder is removed; its MLflow database is kept. Raises UserError if a cluster of that
    name is running, or may be running on another host.
    """
    folder = folder_of(cluster.name)
    with _sole_command(folder):
        if (folder.path / "cluster.json").exists():
            status = status_of(folder)
            check_here(status)
            if status.lives:
                raise UserError(
                    f"a cluster called {cluster.name!r} already exists ({status.state}); take it "
                    f"down with `raysuite cluster down {cluster.name}`, or give another name with "
                    "--name"
                )
            for line in clear_local(folder, status.cluster, tell):
                tell(line)
        prepare(cluster, resume)
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


_TURN_S = 300.0
"""Seconds to wait for another command that starts or ends the cluster."""


@contextmanager
def _sole_command(folder: ClusterFolder) -> Iterator[None]:
    """Let only one command at a time start or end a cluster, on all hosts that share its folder.

    Raises UserError if another command takes too long, or if the folder cannot be locked.
    """
    private.make_folder(folder.path.parent)
    try:
        lock = FileLock(folder.lock, mode=0o600).acquire(_TURN_S)
    except (Timeout, OSError) as error:
        raise UserError(
            f"the cluster {folder.name!r} is locked: {error}; wait until the `raysuite cluster "
            f"up` or `down` that holds {folder.lock} has ended, or set RAYSUITE_HOME to a folder "
            "on a file system that supports locks"
        ) from error
    with lock:
        yield


def wait(folder: ClusterFolder, tell: Callable[[Status], None] = lambda _: None) -> Status:
    """Wait until all nodes have joined; twice per second, call `tell` with the cluster's state.

    The time limit, start_timeout_seconds of the site, begins at the start of the allocation, not at
    the job's submission. Raises NotStartedError if nodes have not joined within the time limit, if
    a failed node was not restarted in time, or if the cluster has ended.
    """
    cluster = folder.cluster()
    patience = Patience(cluster.site.start_timeout_seconds)
    watch = Watch(cluster)
    while True:
        heads = [node.incarnation for node in folder.nodes() if node.index == 0]
        status = status_of(folder, watch.state(heads))  # a new head causes a query at once
        now = time.time()
        tell(status)
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
    """Record the durations of the start's phases. Some durations are differences between times on
    two hosts, whose clocks may differ slightly."""
    seconds = dict(folder.timings())
    submitted = status.cluster.created + seconds.get("submit", 0.0)
    seconds["waiting"] = max(0.0, running_since - submitted)
    first = min((node.began for node in status.nodes if node.began), default=running_since)
    seconds["step"] = max(0.0, first - running_since)
    for what in ("image", "python", "ray"):
        seconds[what] = max((node.seconds.get(what, 0.0) for node in status.nodes), default=0.0)
    seconds["all"] = now - status.cluster.created
    folder.write(Timings(seconds={name: round(value, 3) for name, value in seconds.items()}))


State = Literal["waiting", "starting", "up", "stopping", "ended", "failed", "stale", "unknown"]
"""`waiting`: the job waits for an allocation; `stale`: the job disappeared without a record of its
end, for example in a power failure."""


def backend_of(cluster: Cluster) -> LocalBackend | SlurmBackend:
    """The backend for this cluster's kind of site."""
    if cluster.backend == "slurm":
        return SlurmBackend()
    return HostsBackend() if cluster.backend == "hosts" else LocalBackend()


def state_of(cluster: Cluster) -> JobState:
    """The current state of a cluster's job."""
    return backend_of(cluster).states([cluster])[0]


class Watch:
    """The state of a cluster's job, queried at growing intervals, because each `squeue` loads
    slurmctld, and sites block users who call `squeue` in a loop."""

    def __init__(self, cluster: Cluster, first_s: float | None = None) -> None:
        """`first_s`: upper bound of the interval between the first two queries, in seconds. Later
        intervals double up to the maximum of the backend."""
        self._cluster, self._backend = cluster, backend_of(cluster)
        self._first_s, self._most_s = self._backend.ask_s
        if first_s is not None:
            self._first_s = min(first_s, self._first_s)
        self._wait_s = self._next = 0.0
        self._known = JobState("unknown")
        self._seen: object = None

    def state(self, news: object = None) -> JobState:
        """The job's state. The state is queried at once if `news` differs from the `news` of the
        last query. `news` is any value that the caller observes, such as the starts of the head."""
        now = time.monotonic()
        if now >= self._next or news != self._seen:
            before, self._seen = self._known, news
            (self._known,) = self._backend.states([self._cluster])
            again = before.phase == self._known.phase and self._wait_s
            self._wait_s = min(2 * self._wait_s, self._most_s) if again else self._first_s
            self._next = time.monotonic() + self._wait_s
        return self._known


_ENDS = {
    "down": "taken down",
    "time_limit": "the time limit",
    "preempted": "preempted, or ended from outside",
}


@dataclass(frozen=True)
class Status:
    """A cluster at one moment."""

    cluster: Cluster
    state: State
    job: JobState
    nodes: tuple[Node, ...]
    """The nodes of the cluster's current start; of its last start if the cluster does not run."""
    head: Head | None
    alive: Alive | None
    why: str

    @property
    def lives(self) -> bool:
        """Whether the cluster's processes run, will run, or may run (state unknown)."""
        return self.state in ("waiting", "starting", "up", "stopping", "unknown")

    @property
    def wanted(self) -> int:
        """Number of nodes to wait for: all nodes of the allocation or, if their number is unknown,
        the minimum number of nodes of the cluster."""
        return max(self.cluster.nodes, self.job.nodes)

    @property
    def alive_count(self) -> int:
        return len(self.alive.addresses) if self.alive else 0

    def is_alive(self, node: Node) -> bool:
        """Whether Ray counts this node as alive."""
        return self.alive is not None and node.address in self.alive.addresses


def status_of(folder: ClusterFolder, job: JobState | None = None) -> Status:
    """The current state of a cluster. `job` is the state of its job, if already known. Raises
    UserError if there is no cluster."""
    cluster = folder.cluster()
    job = job or state_of(cluster)
    head, alive = folder.head(), folder.alive()
    nodes = tuple(folder.nodes())
    if head is not None:
        nodes = tuple(node for node in nodes if node.incarnation == head.incarnation)
        if alive is not None and alive.incarnation != head.incarnation:
            alive = None
    known = {node.host for node in nodes}
    nodes += tuple(node for node in _failed_by_log(folder, cluster.job) if node.host not in known)
    state, why = _judge(folder, cluster, job, nodes, alive)
    status = Status(cluster, state, job, nodes, head, alive, why)
    # a killed cluster leaves the files of its head
    return status if status.lives else replace(status, head=None, alive=None)


_FAILED = re.compile(r" *([0-9]+): raysuite: ([A-Za-z0-9_-]+): (.+)")


def _failed_by_log(folder: ClusterFolder, job: str) -> list[Node]:
    """Nodes of the job's last start whose failure is recorded only by a line in SLURM's log. Such a
    node could not write a state file, for example because it cannot access the folder."""
    found: dict[str, Node] = {}
    is_ours = True  # the log also contains earlier jobs
    for line in _tail(folder.slurm_log):
        if line.startswith("raysuite: "):  # the batch script's line at the start or end of a step
            found.clear()
            if line.startswith("raysuite: job "):
                is_ours = line.startswith(f"raysuite: job {job},")
        elif is_ours and (match := _FAILED.match(line)):
            index, host, message = match.groups()
            found[host] = Node(host=host, index=int(index), state="failed", message=message)
    return list(found.values())


def all_status() -> list[Status]:
    """The status of every cluster, newest first; folders that cannot be read are left out."""
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
    """Raise UserError for a local cluster that may be running on another host."""
    cluster = status.cluster
    if cluster.is_process and status.state == "unknown":
        raise UserError(
            f"the cluster {cluster.name!r} runs on {cluster.host}; log in there, or start a "
            "cluster with another name here; if that host no longer exists, remove the cluster's "
            f"record by `rm {folder_of(cluster.name).path}/cluster.json`"
        )


def find_folder(name: str | None) -> ClusterFolder:
    """The folder of the cluster `name`; without a name, of the only running cluster.

    Raises UserError if the name is unknown, if no name is given and no cluster or several are
    running, or if the folder of all clusters cannot be read.
    """
    known = {folder.name: folder for folder in all_folders()}
    if name is not None:
        if name not in known:
            raise UserError(
                f"no cluster is called {name!r}; {_listed('known:', known)}; `raysuite cluster "
                "up` starts one"
            )
        return known[name]
    living = [status.cluster.name for status in all_status() if status.lives]
    if len(living) == 1:
        return known[living[0]]
    if living:
        raise UserError(f"{len(living)} clusters are running; name one of {', '.join(living)}")
    raise UserError("no cluster is running; `raysuite cluster up` starts one")


def _judge(
    folder: ClusterFolder,
    cluster: Cluster,
    job: JobState,
    nodes: tuple[Node, ...],
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
        return "failed", f"SLURM reports {job.state} ({job.reason}){_launched(folder, job)}"
    return "stale", f"disappeared without a record of its end; {_what_it_left(folder, cluster)}"


def _launched(folder: ClusterFolder, job: JobState) -> str:
    """What to do about a job that SLURM could not launch; empty for other jobs."""
    if job.reason != "JobLaunchFailure":
        return ""
    return (
        f" on {', '.join(job.hosts)}: if the first node cannot write {folder.slurm_log}, set "
        "RAYSUITE_HOME to a folder that all nodes share; otherwise see the log of slurmd on that "
        "node"
    )


def _has_said_its_end(folder: ClusterFolder, cluster: Cluster, first: Node | None) -> bool:
    """Whether a cluster without SLURM has recorded its end. False with SLURM, which may start a job
    again."""
    ended = first is not None and first.state in ("ended", "failed")
    return cluster.is_process and (ended or folder.over.exists())


def _what_it_left(folder: ClusterFolder, cluster: Cluster) -> str:
    if cluster.backend == "local":
        return "`raysuite cluster down` removes its leftovers"
    return (
        "`raysuite cluster down` records the end and removes the cluster's secrets; the leftovers "
        f"on a node (the folder `temp` in {folder.path}/nodes/HOST.json) are removed by the next "
        "cluster of that name on this node, or by hand"
    )


def _listed(words: str, names: dict[str, ClusterFolder]) -> str:
    return f"{words} {', '.join(names)}" if names else "none is known"


_SILENT_S = 30.0
"""Seconds to wait for an answer of the head, which may be busy, or unreachable from this host."""
_ASKED_S = 60.0
"""Seconds for a job's agents to end by themselves, before SLURM signals all their processes."""
_ENDS_S = 90.0
"""Seconds for a job to end its processes and copy the database, before it is killed."""


def down(
    folder: ClusterFolder,
    grace_s: float,
    tell: Callable[[str], None] = lambda _: None,
    remove: bool = False,
) -> list[str]:
    """End a cluster. Return a line for each process or folder that remains, normally none.

    Leftovers of a killed cluster on this machine are removed, after its MLflow database has been
    copied to its folder. Leftovers on the nodes of an ended SLURM job remain: they cannot be
    reached. With `remove`, the folder is removed too, if the job is gone. Running jobs have
    `grace_s` seconds to write a checkpoint and stop. Raises UserError for a local cluster on
    another host.
    """
    with _sole_command(folder):
        status = status_of(folder)
        check_here(status)
        cluster, backend = status.cluster, backend_of(status.cluster)
        if status.lives:
            if folder.stop() is None:
                folder.write(Stop(reason="down", deadline=time.time() + grace_s))
            _wait_for_jobs(folder, status, grace_s, tell)
            tell("ending")
            if not _ended_when_asked(folder, status):
                backend.end(cluster)
            if not _gone(folder, cluster, _ENDS_S):
                tell("killing the remaining processes")
                backend.kill(cluster)
                _gone(folder, cluster, _ENDS_S)
        elif cluster.job:
            folder.end.touch(0o600)  # ends agents whose launcher has died
            backend.kill(cluster)  # even if its known state is "gone"
        try:
            left = _left(folder, status, tell)
        finally:
            folder.forget_secrets()
        if status.state in ("stale", "failed") and folder.stop() is None:
            folder.write(Stop(reason="down", deadline=time.time()))  # records the end
        if remove and (not status.lives or state_of(cluster).phase == "gone"):
            shutil.rmtree(folder.path, ignore_errors=True)
    return left


def _ended_when_asked(folder: ClusterFolder, status: Status) -> bool:
    """Request the end of the agents by a file; return whether the job has ended in time.

    A signal from SLURM would also end the process that serves the files of a container image.
    Agents and Ray would then die of a bus error before they had removed their files.
    """
    folder.end.touch(0o600)
    if status.cluster.backend == "local" or status.state == "waiting":
        return False
    return _gone(folder, status.cluster, _ASKED_S)


def _wait_for_jobs(
    folder: ClusterFolder, status: Status, grace_s: float, tell: Callable[[str], None]
) -> None:
    if status.head is None or status.state == "waiting":
        return
    dashboard = Dashboard(status.head.dashboard, folder.token())
    deadline = time.monotonic() + grace_s
    while running := _under_way(dashboard, deadline):
        if time.monotonic() > deadline:
            tell(f"not waiting any longer for {', '.join(running)}")
            return
        tell(f"{len(running)} jobs stop: {', '.join(running)}")
        time.sleep(_POLL_S)


def _under_way(dashboard: Dashboard, deadline: float) -> list[str]:
    """Ids of the jobs that have not ended; empty if the head is gone or does not answer in time."""
    patience = min(deadline, time.monotonic() + _SILENT_S)
    while True:
        try:
            return [job.id for job in dashboard.jobs() if job.status in RUNNING]
        except RefusedError:
            return []
        except NoAnswerError:
            if time.monotonic() > patience:
                return []
        time.sleep(_POLL_S)


def _gone(folder: ClusterFolder, cluster: Cluster, patience_s: float) -> bool:
    watch, deadline = Watch(cluster, _POLL_S), time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if watch.state(folder.over.exists()).phase == "gone":
            return True
        time.sleep(_POLL_S)
    return state_of(cluster).phase == "gone"


def _left(folder: ClusterFolder, status: Status, tell: Callable[[str], None]) -> list[str]:
    cluster = status.cluster
    if status.lives and (state := state_of(cluster)).phase != "gone":
        return [f"the job {cluster.job} is {state.state or 'still there'} {state.reason}"]
    if cluster.backend == "local":
        folder.over.touch(0o600)  # a killed agent could not notify other hosts
    return clear_local(folder, cluster, tell)
