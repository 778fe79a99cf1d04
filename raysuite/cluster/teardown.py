"""Take a cluster down, and see that nothing of it is left."""

from __future__ import annotations

import time
from collections.abc import Callable

from raysuite.cluster.agent.leftovers import clear_local
from raysuite.cluster.backend import Watch, backend_of, state_of
from raysuite.cluster.dashboard import RUNNING, Dashboard, NoAnswerError, RefusedError
from raysuite.cluster.files import Cluster, Stop
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.status import Status, check_here, status_of

_POLL_S = 0.5
_SILENT_S = 30.0
"""For a busy head to answer again; one out of reach, as from a laptop, never will."""
_ASKED_S = 60.0
"""For the agents of a job to end by themselves, before SLURM signals every process of theirs."""
_ENDS_S = 90.0
"""From asking until the last process and the database's copy are done; then it is killed."""


def down(
    folder: ClusterFolder, grace_s: float, tell: Callable[[str], None] = lambda _: None
) -> list[str]:
    """End a cluster; a line for everything that is left of it, which should be none.

    What a killed one left on this machine is removed, its MLflow database brought home; a SLURM
    job's nodes are out of reach once the job is gone.
    Runs under way have `grace_s` seconds to write a checkpoint and stop.
    Raises UserError for a local cluster of another host.
    """
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
            tell("killing what did not end")
            backend.kill(cluster)
            _gone(folder, cluster, _ENDS_S)
    try:
        left = _left(folder, status, tell)
    finally:
        folder.forget_secrets()
    if status.state == "stale":
        folder.write(Stop(reason="down", deadline=time.time()))  # no longer without a word
    return left


def _ended_when_asked(folder: ClusterFolder, status: Status) -> bool:
    """Ask by a file: SLURM's signal also ends the process that serves an image's files.

    Agents, and Ray, then die of a bus error before they have removed what they made.
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
    """Jobs that have not ended; none where the head is gone, or too long silent."""
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
        return [f"SLURM's job {cluster.job} is {state.state or 'still there'} {state.reason}"]
    if cluster.backend == "local":
        folder.over.touch(0o600)  # an agent that was killed could not tell other hosts
    return clear_local(folder, cluster, tell)
