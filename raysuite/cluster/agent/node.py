"""What the head and the other nodes do alike: ports, Ray, its end, and saying how far they came."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from raysuite.cluster import ports, private
from raysuite.cluster.agent.children import Children
from raysuite.cluster.agent.environment import node_variables
from raysuite.cluster.agent.place import Place
from raysuite.cluster.agent.ray_process import start_words
from raysuite.cluster.agent.signals import Signals
from raysuite.cluster.agent.step import Step
from raysuite.cluster.files import NONCE, Cluster, Node, NodeState
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.process import birth_of
from raysuite.errors import RaysuiteError

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
