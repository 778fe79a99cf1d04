"""The first node: Ray's head, the MLflow server, and the count of nodes."""

from __future__ import annotations

import contextlib
import logging
import time

from raysuite.cluster.agent.addresses import find_address
from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.cluster.agent.mlflow_keeper import MlflowKeeper
from raysuite.cluster.agent.node import NodeFailedError, ThisNode
from raysuite.cluster.agent.resuming import Resuming
from raysuite.cluster.dashboard import Dashboard, NoAnswerError
from raysuite.cluster.files import Alive, Head, Stop

_TRIES = 3
"""Starts of Ray, each with other ports, before the head gives up."""
_COUNT_EACH_S = 2.0
"""Once all nodes were counted; at each look before that."""
_WARNING_S = 60.0
"""Between the warning and the end, where the site says nothing of it."""
log = logging.getLogger("raysuite.cluster")


class HeadNode:
    """Runs until a signal ends it. Raises NodeFailedError when Ray's head dies."""

    def __init__(self, node: ThisNode) -> None:
        self._node = node
        self._mlflow: MlflowKeeper | None = None
        self._environment: dict[str, str] = {}
        self._resuming = Resuming(node.folder)
        self._alive = Alive()
        self._counted = time.monotonic()

    def run(self) -> None:
        self._start()
        node = self._node
        while not node.signals.ended:
            self._watch()
            node.signals.wait(0.5)
        if node.folder.stop() is None:  # else whoever ended us has told why
            node.folder.write(Stop(reason="preempted", deadline=time.time()))

    def end(self) -> None:
        """End all processes, and bring MLflow's database home."""
        try:
            self._node.end()
            if self._mlflow:
                self._mlflow.save()
        finally:
            self._node.folder.over.touch()

    # starting

    def _start(self) -> None:
        node = self._node
        node.address = find_address(node.cluster.site, None)
        node.say("starting")
        for attempt in range(_TRIES):
            node.take_ports(attempt)
            began = time.monotonic()
            self._place_mlflow()
            self._tell_where()
            node.start_ray("", self._environment)
            if self._wait_for_ray():
                node.took("ray", began)
                break
            node.end_ray()
            if node.signals.ended:
                return
            log.warning("Ray's head did not start; trying other ports")
        else:
            raise NodeFailedError(
                f"Ray's head did not start, in {_TRIES} attempts; "
                f"{node.folder.log_of(node.place.host)} says why"
            )
        self._count()
        if not node.signals.ended:
            if self._mlflow:  # now: Ray's start needs every core, and nobody waits for it
                self._mlflow.start(self._environment)
            node.say("joined")
            self._resuming.begin()

    def _place_mlflow(self) -> None:
        """Where the server will answer: Ray's processes are told before it does."""
        node = self._node
        options, port = node.cluster.site.mlflow, node.ports.mlflow
        server = MlflowServer(node.folder, options, node.address, port, node.temp)
        self._mlflow = MlflowKeeper(server, node.children, node.folder.logs / "mlflow.log")
        self._environment = node.environment(server.url)

    def _tell_where(self) -> None:
        """Before Ray answers: the other nodes knock until it does, and lose no time."""
        node, mlflow = self._node, self._mlflow
        node.folder.write(
            Head(
                host=node.place.host,
                gcs=f"{node.address}:{node.ports.gcs}",
                client=f"ray://{node.address}:{node.ports.client}",
                dashboard=self._dashboard_url,
                mlflow="" if mlflow is None or mlflow.error else mlflow.server.url,
                mlflow_answers=mlflow is not None and mlflow.answers,
                mlflow_error="" if mlflow is None else mlflow.error,
                attempt=node.place.attempt,
                incarnation=node.place.incarnation,
            )
        )

    @property
    def _dashboard_url(self) -> str:
        return f"http://{self._node.address}:{self._node.ports.dashboard}"

    def _wait_for_ray(self) -> bool:
        node = self._node
        while not node.signals.ended and not node.ray_ended():
            with contextlib.suppress(NoAnswerError):
                if any(each.alive for each in self._dashboard().nodes()):
                    return True
            node.signals.wait(0.5)
        return False

    # watching

    def _watch(self) -> None:
        node, now = self._node, time.monotonic()
        node.check_step()
        if node.ray_ended():
            raise NodeFailedError("Ray's head ended by itself")
        if node.signals.take_warning() and node.folder.stop() is None:
            seconds = getattr(node.cluster.site, "warn_seconds", _WARNING_S)
            node.folder.write(Stop(reason="time_limit", deadline=time.time() + seconds))
        whole = len(self._alive.addresses) >= node.cluster.nodes
        if not whole or now - self._counted > _COUNT_EACH_S:
            self._counted = now
            self._count()
            node.children.reap()
        self._resuming.look(self._dashboard_url)
        if self._mlflow and self._mlflow.look():
            if self._mlflow.answers:
                node.took("mlflow", self._mlflow.began)
            self._tell_where()
            node.say("joined")

    def _count(self) -> None:
        """Write which nodes Ray counts as alive, whenever that changes."""
        try:
            alive = [node for node in self._dashboard().nodes() if node.alive]
        except NoAnswerError as error:
            log.warning("%s", error)
            return
        found = Alive(
            addresses=tuple(sorted(node.address for node in alive)),
            cpus=sum(node.cpus for node in alive),
            gpus=sum(node.gpus for node in alive),
            incarnation=self._node.place.incarnation,
            when=self._alive.when,
        )
        if found != self._alive:
            self._alive = found.model_copy(update={"when": time.time()})
            log.info("nodes alive: %s", ", ".join(found.addresses))
            try:
                self._node.folder.write(self._alive)
            except OSError as error:  # a disk may be full for a while
                log.error("%s", error)
                self._alive = Alive()

    def _dashboard(self) -> Dashboard:
        return Dashboard(self._dashboard_url, self._node.folder.token())
