"""What the head and the other nodes do alike: ports, Ray, its end, and saying how far they came."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import psutil

from raysuite.cluster import binding, ports, private
from raysuite.cluster.agent.addresses import interface_of
from raysuite.cluster.agent.children import Children
from raysuite.cluster.agent.place import Place
from raysuite.cluster.agent.ray_process import start_words
from raysuite.cluster.agent.signals import Signals
from raysuite.cluster.environment import RAY_SETTINGS, TEMP, variables
from raysuite.cluster.files import NONCE, Cluster, Node, NodeState
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.process import birth_of
from raysuite.cluster.proxies import past_proxies
from raysuite.errors import RaysuiteError

# What a node's processes find in their environment: paths of secrets, never secrets.

_NEVER_INHERITED = (
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
_RAY = {
    **RAY_SETTINGS,
    "PYTHONUNBUFFERED": "1",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",  # its modules are read from a busy file system
    "RAY_agent_register_timeout_ms": "240000",  # so are its agents': patient_ray waits as long
    "RAY_JOB_STOP_WAIT_TIME_S": "70",  # a job that is stopped has a minute for a checkpoint
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "5",  # SLURM kills half a minute after its signal
}


def node_variables(
    folder: ClusterFolder,
    address: str,
    mlflow: str,
    temp: Path,
    site_environment: Mapping[str, str],
) -> dict[str, str]:
    """The environment of Ray's processes on this node, and so of the jobs that they start."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NEVER_INHERITED}
    path = [str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
    base = {**inherited, **_RAY, **site_environment}
    head = folder.head()
    urls = (f"http://{address}", mlflow, head.dashboard if head else "")
    return {
        **base,
        **past_proxies(urls, base),
        **variables(folder, address, mlflow),
        **binding.variables(address, folder.path),
        "RAYSUITE_INTERFACE": interface_of(address),
        TEMP: str(temp),
        "TMPDIR": str(temp),
        "PATH": os.pathsep.join(path),
    }


# The process by which slurmd holds this node's part of a step: its task's parent.
#
# Where it dies, as by a memory limit or an administrator's hand, its tasks live on and SLURM knows
# nothing of them: it neither ends them with the job nor tells srun.


class Step:
    """Watches that process; outside of SLURM there is none, and nothing is ever lost."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        # in an image the agent is a descendant of the task, not the task itself
        task = variables.get("SLURM_TASK_PID", "")
        self._task: psutil.Process | None = None
        if "SLURM_STEP_ID" in variables and task.isdecimal():
            try:
                self._task = psutil.Process(int(task))
                self._holder = self._task.ppid()
            except psutil.Error:  # a container with process ids of its own
                self._task = None

    def is_lost(self) -> bool:
        """Whether the task is no longer held by the process that started it."""
        if self._task is None:
            return False
        try:
            return self._task.ppid() != self._holder
        except psutil.NoSuchProcess:
            return True


RAY = "ray"
_RAY_END_S = 15.0
log = logging.getLogger("raysuite.cluster")


class NodeFailedError(RaysuiteError):
    """This node cannot be, or stay, a part of the cluster."""


class ThisNode:
    """The node that this agent looks after."""

    def __init__(
        self, folder: ClusterFolder, cluster: Cluster, place: Place, temp: Path, signals: Signals
    ) -> None:
        self.folder, self.cluster, self.place, self.temp = folder, cluster, place, temp
        self.signals = signals
        self.children = Children(Path(cluster.working_folder))
        self.address = ""
        self.ports = ports.Ports(0, 0)
        self._guards = ExitStack()
        self._step = Step()
        self._nonce = private.new_token()
        private.create(temp / NONCE, self._nonce)
        self._began = psutil.Process().create_time()
        self._seconds = {"python": time.time() - self._began}

    def say(self, state: NodeState, message: str = "") -> None:
        """Tell in the cluster's folder how far this node came."""
        log.info("%s%s", state, f": {message}" if message else "")
        self.folder.write(
            Node(
                host=self.place.host,
                state=state,
                index=self.place.index,
                address=self.address,
                pid=self.signals.pid,
                message=message,
                incarnation=self.place.incarnation,
                temp=str(self.temp),
                nonce=self._nonce,
                began=self._began,
                birth=birth_of(self.signals.pid),
                seconds={name: round(value, 3) for name, value in self._seconds.items()},
            )
        )

    def took(self, what: str, since: float) -> None:
        """Keep how long a part of the start took, since a time of the monotonic clock."""
        self._seconds[what] = time.monotonic() - since

    def take_ports(self, attempt: int) -> None:
        """A free block of ports; another one at each attempt."""
        self.release_ports()
        seed = f"{self.folder.path}:{self.place.incarnation}:{self.place.host}:{attempt}"
        size = ports.block_size(self.place.cpus or 0)
        self.ports, self._guards = ports.take(seed, size)

    def release_ports(self) -> None:
        self._guards.close()

    def environment(self, mlflow: str) -> dict[str, str]:
        """Of all processes on this node."""
        site = self.cluster.site
        return node_variables(self.folder, self.address, mlflow, self.temp, site.environment)

    def start_ray(self, gcs: str, environment: dict[str, str]) -> None:
        """Start Ray, with a folder of its own each time."""
        ray_temp = self.temp / "r"
        shutil.rmtree(ray_temp, ignore_errors=True)
        words = start_words(self.place, self.address, self.ports, gcs, ray_temp)
        self.children.start(RAY, words, environment, self.folder.log_of(self.place.host))

    def check_step(self) -> None:
        """Raise NodeFailedError where SLURM has lost sight of this node's part of the step."""
        if self._step.is_lost():
            raise NodeFailedError(
                "SLURM's own process of the step (slurmstepd) is gone here; Ray ends with it"
            )

    def ray_ended(self) -> bool:
        """Whether Ray is gone without our doing; a signal to all processes may reach it first."""
        if self.children.status(RAY) is None:
            return False
        self.signals.wait(2.0)
        return not self.signals.ended

    def end_ray(self) -> None:
        self.children.end(RAY, _RAY_END_S)

    def end(self) -> None:
        """End every process of this node."""
        self.children.end_all(_RAY_END_S)
        self.release_ports()
