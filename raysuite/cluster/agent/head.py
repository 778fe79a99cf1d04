"""The first node: Ray's head, the MLflow server, and the count of nodes."""

from __future__ import annotations

import contextlib
import logging
import shlex
import time

from raysuite.cluster.agent.addresses import find_address
from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.cluster.agent.node import NodeFailedError, ThisNode
from raysuite.cluster.dashboard import Dashboard, NoAnswerError
from raysuite.cluster.files import Alive, Head, Stop
from raysuite.cluster.suites import resume_commands

_TRIES = 3
"""Starts of Ray, each with other ports, before the head gives up."""
_MLFLOW_RESTARTS = 5
_MLFLOW_STARTS_S = 240.0
"""From its start to its first answer, on a busy node."""
_COUNT_EACH_S = 2.0
"""Once all nodes were counted; at each look before that."""
_SAVE_EACH_S = 180.0
_WARNING_S = 60.0
"""Between the warning and the end, where the site says nothing of it."""
log = logging.getLogger("raysuite.cluster")


class HeadNode:
    """Runs until a signal ends it. Raises NodeFailedError when Ray's head dies."""

    def __init__(self, node: ThisNode) -> None:
        self._node = node
        self._mlflow: MlflowServer | None = None
        self._environment: dict[str, str] = {}
        self._mlflow_began = 0.0
        self._mlflow_answers = False
        self._restarts = 0
        self._alive = Alive()
        self._counted = self._saved = time.monotonic()

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
        self._node.end()
        if self._mlflow:
            self._mlflow.save()
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
            self._start_mlflow()  # now: Ray's start needs every core, and nobody waits for it
            node.say("joined")
            self._resume_suites()

    def _place_mlflow(self) -> None:
        """Where the server will answer: Ray's processes are told before it does."""
        node = self._node
        options, port = node.cluster.site.mlflow, node.ports.mlflow
        self._mlflow = MlflowServer(node.folder, options, node.address, port, node.temp)
        self._environment = node.environment(self._mlflow.url)

    def _start_mlflow(self) -> None:
        node, server = self._node, self._mlflow
        if server:
            self._mlflow_began = time.monotonic()
            environment = server.prepare(self._environment)
            log = node.folder.logs / "mlflow.log"
            node.children.start(server.NAME, server.words(), environment, log)

    def _end_mlflow(self) -> None:
        if self._mlflow:
            self._node.children.end(self._mlflow.NAME, 5.0)

    def _tell_where(self) -> None:
        """Before Ray answers: the other nodes knock until it does, and lose no time."""
        node = self._node
        node.folder.write(
            Head(
                host=node.place.host,
                gcs=f"{node.address}:{node.ports.gcs}",
                dashboard=self._dashboard_url,
                mlflow=self._mlflow.url if self._mlflow else "",
                mlflow_answers=self._mlflow_answers,
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

    def _resume_suites(self) -> None:
        for resume in resume_commands(self._node.folder):
            entrypoint = f"cd {shlex.quote(str(resume.folder))} && exec {shlex.join(resume.words)}"
            try:
                job = self._dashboard().submit(entrypoint)
            except NoAnswerError as error:
                log.error("%s could not be resumed: %s", shlex.join(resume.words), error)
            else:
                log.info("resumed as job %s: %s", job, shlex.join(resume.words))

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
        if self._mlflow:
            self._watch_mlflow(self._mlflow, now)

    def _watch_mlflow(self, server: MlflowServer, now: float) -> None:
        ended = self._node.children.status(server.NAME) is not None
        if not self._mlflow_answers:
            self._await_mlflow(server, ended, now)
        elif ended and self._restarts <= _MLFLOW_RESTARTS:
            self._restart_mlflow()
        elif now - self._saved > _SAVE_EACH_S:
            self._saved = now
            server.save()

    def _await_mlflow(self, server: MlflowServer, ended: bool, now: float) -> None:
        """Tell when the server answers for the first time, or that it never will."""
        node = self._node
        if not ended and server.answers():
            node.took("mlflow", self._mlflow_began)
            self._mlflow_answers = True
        elif ended or now - self._mlflow_began > _MLFLOW_STARTS_S:
            log.error("MLflow's server did not start; logs/mlflow.log says why")
            self._end_mlflow()
            self._mlflow = None
        else:
            return
        self._tell_where()
        node.say("joined")

    def _restart_mlflow(self) -> None:
        self._end_mlflow()  # its own child may live on, and hold the port
        self._restarts += 1
        if self._restarts > _MLFLOW_RESTARTS:
            log.error("MLflow's server ended again and again; runs are replayed by `sync`")
            return
        log.warning("MLflow's server ended; starting it again")
        self._start_mlflow()

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
            self._node.folder.write(self._alive)
            log.info("nodes alive: %s", ", ".join(found.addresses))

    def _dashboard(self) -> Dashboard:
        return Dashboard(self._dashboard_url, self._node.folder.token())
