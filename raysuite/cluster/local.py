"""A cluster on this machine: one agent process, detached from the terminal."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Sequence

import psutil

from raysuite.cluster.backend import JobState
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.process import birth_of, find_process
from raysuite.cluster.state_files import Cluster
from raysuite.cluster.variables import with_site
from raysuite.errors import UserError


class LocalBackend:
    """Starts, watches and ends the agent of a cluster: one process, known by its id and start
    time."""

    ask_s = (0.5, 0.5)
    """Seconds between two queries of a job's state: the first interval, and the longest."""

    def start(self, folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> Cluster:
        """Start `command` once on each node; return `cluster` with the id of its job."""
        log = os.open(folder.logs / "agent.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            process = subprocess.Popen(
                command,
                env=with_site(os.environ, cluster.site.environment),
                cwd=cluster.working_folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(
                f"{command[0]} does not start: {error.strerror}; fix the site's python or image "
                f"(`raysuite doctor --site {cluster.site.name}` checks them)"
            ) from error
        finally:
            os.close(log)
        pid = process.pid
        found = {"job": str(pid), "host": this_host(), "birth": birth_of(pid)}
        return cluster.model_copy(update=found)

    def states(self, clusters: Sequence[Cluster]) -> list[JobState]:
        """The state of each cluster's job, in order; one query returns all states."""
        return [self._state(cluster) for cluster in clusters]

    def _state(self, cluster: Cluster) -> JobState:
        if not _is_here(cluster):
            return JobState("unknown", reason=f"it runs on {cluster.host}")
        if _agent(cluster) is None:
            return JobState("gone")
        return JobState("running", "running", hosts=(this_host(),))

    def end(self, cluster: Cluster) -> None:
        """Request the end of the agents."""
        if agent := _agent(cluster):
            with contextlib.suppress(psutil.Error):
                agent.terminate()

    def kill(self, cluster: Cluster) -> None:
        """Kill the processes that did not end on request."""
        if agent := _agent(cluster):
            with contextlib.suppress(psutil.Error):
                for process in [agent, *agent.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        process.kill()


def this_host() -> str:
    """This host's name without its domain, which can change with the network."""
    return platform.node().partition(".")[0]


def _is_here(cluster: Cluster) -> bool:
    return cluster.host in ("", this_host())  # `host` is empty until the agent has started


def _agent(cluster: Cluster) -> psutil.Process | None:
    """The agent's process; None if it is on another host or has ended, even if another process has
    its id now."""
    if not cluster.job or not _is_here(cluster):
        return None
    return find_process(int(cluster.job), cluster.birth)
