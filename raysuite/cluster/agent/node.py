"""A node of the cluster: its environment, its Ray processes, and the main loop of worker nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import psutil

from raysuite.cluster import binding, ports, private, ray_start
from raysuite.cluster.agent.children import Children
from raysuite.cluster.agent.place import Place, find_address, interface_of
from raysuite.cluster.agent.ray_process import answers, refuses, start_words
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.process import TEMP, age_s, birth_of
from raysuite.cluster.state_files import NONCE, Cluster, Head, Node, NodeState
from raysuite.cluster.variables import RAY_SETTINGS, past_proxies, variables, with_site
from raysuite.errors import RaysuiteError

# The environment of a node's processes has paths of files with secrets, but no secret.

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
    # the file system with the dashboard's modules may be busy
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_JOB_STOP_WAIT_TIME_S": "70",  # a job has a minute for a checkpoint
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "5",  # SLURM kills Ray 30 s after its signal
}


def node_variables(
    folder: ClusterFolder,
    address: str,
    mlflow: str,
    temp: Path,
    site_environment: Mapping[str, str],
) -> dict[str, str]:
    """The environment of Ray's processes on this node, and of the jobs that they start."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NEVER_INHERITED}
    base = with_site({**inherited, **_RAY}, site_environment)
    path = [str(Path(sys.executable).parent), base.get("PATH", os.defpath)]
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


# On each node, slurmstepd is the parent of the step's task. If slurmstepd dies, for example by a
# memory limit or an administrator's signal, the task continues, but SLURM neither ends it with the
# job nor notifies srun.


class Step:
    """Watches slurmstepd. Outside SLURM, `is_lost` is always false."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        # in an image, the agent is a descendant of the task
        task = variables.get("SLURM_TASK_PID", "")
        self._task: psutil.Process | None = None
        self.began: float | None = None
        """Start time of the task, in seconds since 1970."""
        if "SLURM_STEP_ID" in variables and task.isdecimal():
            try:
                self._task = psutil.Process(int(task))
                self._holder, self.began = self._task.ppid(), time.time() - age_s(int(task))
            except (psutil.Error, OSError):  # a container with its own process ids
                self._task = None

    def is_lost(self) -> bool:
        """Whether the task has lost its parent, slurmstepd."""
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
    """This node cannot join the cluster, or cannot stay in it."""


class ThisNode:
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
        self._began = time.time() - age_s(signals.pid)
        self._seconds = {"python": time.time() - self._began}
        if self._step.began is not None:
            self._seconds = {"image": self._began - self._step.began, **self._seconds}

    def say(self, state: NodeState, message: str = "") -> None:
        """Write the state of this node to the cluster's folder."""
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
        """Record the duration of the phase `what` of the node's start. The phase began at the
        monotonic time `since`, and ends now."""
        self._seconds[what] = time.monotonic() - since

    def take_ports(self, attempt: int) -> None:
        """Reserve a free block of ports; each attempt reserves another block."""
        self.release_ports()
        seed = f"{self.folder.path}:{self.place.incarnation}:{self.place.host}:{attempt}"
        size = ports.block_size(self.place.cpus or 0)
        self.ports, self._guards = ports.take(seed, size)

    def release_ports(self) -> None:
        self._guards.close()

    def environment(self, mlflow: str) -> dict[str, str]:
        """The environment of all processes on this node."""
        site = self.cluster.site
        return node_variables(self.folder, self.address, mlflow, self.temp, site.environment)

    def start_ray(self, gcs: str, environment: dict[str, str]) -> None:
        """Start Ray with a new temporary folder."""
        ray_temp = self.temp / "r"
        shutil.rmtree(ray_temp, ignore_errors=True)
        words = start_words(self.place, self.address, self.ports, gcs, ray_temp)
        self.children.start(RAY, words, environment, self.folder.log_of(self.place.host))

    def check_step(self) -> None:
        """Raise NodeFailedError if slurmstepd on this node has died."""
        if self._step.is_lost():
            raise NodeFailedError(
                "slurmstepd, SLURM's process for the step, has ended on this node, so Ray is "
                "ended too"
            )

    def ray_ended(self) -> bool:
        """Whether Ray ended by itself. A signal to all processes may reach Ray before this agent,
        so wait 2 s for the signal if Ray has ended."""
        if self.children.status(RAY) is None:
            return False
        self.signals.wait(2.0)
        return not self.signals.ended

    def end_ray(self) -> str:
        """End Ray. Return why it failed, from its logs or its last printed line."""
        self.children.end(RAY, _RAY_END_S)
        printed = self.folder.log_of(self.place.host).read_text("utf-8", "replace").splitlines()
        return ray_start.reason(self.temp / "r") or (printed or ["it printed nothing"])[-1]

    def end(self) -> None:
        """End every process of this node."""
        self.children.end_all(_RAY_END_S)
        self.release_ports()


_REJOIN_AFTER_S = 5.0
_HEAD_SILENT_S = 90.0
"""A node that has lost the head ends if it reaches no head within this number of seconds."""
_KNOCK_EACH_S = 5.0
_REFUSALS = 3
"""Number of consecutive refused connections after which Ray's head has certainly ended."""
_NEW_HEAD_S = 20.0
"""Seconds after which a node ends if its head's port is closed and no new head has started."""


class WorkerNode:
    """Runs a node until a signal ends it, or the head has ended. `run` raises NodeFailedError."""

    def __init__(self, node: ThisNode) -> None:
        self._node = node
        self._joined = ""
        """Address of the head that this node last joined."""

    def run(self) -> None:
        node = self._node
        node.say("starting", "waiting for the head")
        attempt = 0
        while not node.signals.ended and not self._head_ended():
            head = self._find_head()
            if head is None:
                return
            if self._join(head, attempt):
                self._stay(head)
            why = node.end_ray()
            attempt += 1
            if not node.signals.ended and not self._head_ended():
                node.say("starting", f"Ray ended on this node; joining the cluster again: {why}")
                node.signals.wait(_REJOIN_AFTER_S)

    def end(self) -> None:
        self._node.end()

    def _find_head(self) -> Head | None:
        """Wait until the head of this step accepts a connection, and return the head. Return None
        if this node has to end first, or if the head has ended."""
        node = self._node
        timeout = _HEAD_SILENT_S
        if not self._joined:
            timeout = max(timeout, float(node.cluster.site.start_timeout_seconds))
        began = time.monotonic()
        while not node.signals.ended and not self._head_ended():
            head = node.folder.head()
            if head is not None and head.incarnation == node.place.incarnation:
                host, _, port = head.gcs.rpartition(":")
                if answers(host, int(port)):
                    node.took("head", began)
                    return head
                closed = head.gcs == self._joined and refuses(host, int(port))
                if closed and time.monotonic() - began > _NEW_HEAD_S:
                    raise NodeFailedError(f"the head {head.host} is gone: {head.gcs} is closed")
            if time.monotonic() - began > timeout:
                raise NodeFailedError(f"no head could be reached within {timeout:.0f} s")
            node.signals.wait(0.5)
        return None

    def _join(self, head: Head, attempt: int) -> bool:
        node = self._node
        began = time.monotonic()
        node.address = find_address(node.cluster.site, head.gcs.rpartition(":")[0])
        node.take_ports(attempt)
        node.start_ray(head.gcs, node.environment(head.mlflow_inside))
        while not node.signals.ended and not node.ray_ended():
            if answers(node.address, node.ports.node_manager):
                node.took("ray", began)
                node.say("joined")
                self._joined = head.gcs
                return True
            node.signals.wait(0.5)
        return False

    def _stay(self, head: Head) -> None:
        node, knocked, refusals = self._node, time.monotonic(), 0
        host, _, port = head.gcs.rpartition(":")
        while not node.signals.ended and not node.ray_ended() and not self._head_ended():
            node.children.reap()
            node.signals.wait(1.0)
            if time.monotonic() - knocked > _KNOCK_EACH_S:
                knocked = time.monotonic()
                refusals = refusals + 1 if refuses(host, int(port)) else 0
                if refusals == _REFUSALS:
                    return

    def _head_ended(self) -> bool:
        """Whether the head of this step has ended.

        Raises NodeFailedError if the head failed, or if slurmstepd on this node has died.
        """
        self._node.check_step()
        for other in self._node.folder.nodes():
            if other.index == 0 and other.incarnation == self._node.place.incarnation:
                if other.state == "failed":
                    raise NodeFailedError(f"the head {other.host} failed: {other.message}")
                if other.state == "ended":
                    return True
        if self._node.folder.over.exists():  # the head's agent was killed
            raise NodeFailedError("the head's agent has ended")
        return False


_STEP_S = 0.2
_LOOK_EACH_S = 1.0


class Signals:
    """Handles SIGTERM, SIGINT, SIGHUP and a file as requests to end, and SIGUSR1 as SLURM's warning
    before the time limit."""

    def __init__(self, end: Path) -> None:
        """`end` is a file that exists once the end has been requested."""
        self.pid = os.getpid()
        self.mark: Path | None = None
        """A file that is created when a signal requests the end."""
        self._file, self._looked = end, 0.0
        self._ended = threading.Event()
        self._warned = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGUSR1, self._warn)

    @property
    def ended(self) -> bool:
        if not self._ended.is_set() and time.monotonic() - self._looked > _LOOK_EACH_S:
            self._looked = time.monotonic()
            if self._file.exists():
                self._ended.set()
        return self._ended.is_set()

    def take_warning(self) -> bool:
        """Whether a warning has come since the last call."""
        warned = self._warned.is_set()
        self._warned.clear()
        return warned

    def wait(self, seconds: float) -> None:
        """Sleep for the given time, or until the end is requested."""
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_STEP_S, left))

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ended.set()
        if self.mark:
            with contextlib.suppress(OSError):
                self.mark.touch(0o600)

    def _warn(self, number: int, frame: FrameType | None) -> None:
        self._warned.set()
