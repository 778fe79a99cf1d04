"""Run the first node: start Ray's head and MLflow's server, resume suites, list the nodes."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import secrets
import shlex
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysuite.cluster import ray_start
from raysuite.cluster.agent.children import Children
from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.cluster.agent.node import NodeFailedError, ThisNode
from raysuite.cluster.agent.place import client_address, find_address
from raysuite.cluster.agent.relay import Relay
from raysuite.cluster.dashboard import RUNNING, Dashboard, NoAnswerError
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Alive, Head, Stop
from raysuite.cluster.suites import RESUMED, Suite, suites_to_resume, taken_up
from raysuite.errors import RaysuiteError

# Start and restart MLflow's server on the head, and copy its database to the cluster's folder.

_RESTARTS, _WITHIN_S = 5, 600.0
"""Up to _RESTARTS restarts within _WITHIN_S seconds have no delay; each further restart waits
_REST_S seconds."""
_REST_S = 300.0
_STARTS_S = 240.0
"""Seconds within which the server should give its first answer, even on a busy node. After that, a
warning is logged, and the head keeps waiting."""
_SAVE_EACH_S = 180.0
_TAIL = 10_000
"""Number of bytes at the end of the server's output that are searched for its last error."""
log = logging.getLogger("raysuite.cluster")


class MlflowKeeper:
    """Keeps one MLflow server running; the cluster continues if the server fails."""

    def __init__(self, server: MlflowServer, children: Children, output: Path) -> None:
        """`output` is the file to which the server writes its output."""
        self.server = server
        self.answers = False
        """Whether the server has answered; set to False when the server has failed, but not at a
        restart without delay."""
        self.error = ""
        """Why the server failed or is late; empty otherwise. If the server has answered before, it
        is restarted _REST_S seconds after a failure."""
        self.began = self._saved = time.monotonic()
        self._children, self._output = children, output
        self._environment: Mapping[str, str] = {}
        self._restarts: list[float] = []
        """Monotonic times of the restarts within the last _WITHIN_S seconds."""
        self._again = math.inf
        """Monotonic time of the next restart after a failure; infinite if none is due."""
        self._printed = 0
        """Size of the output, in bytes, before the current server started."""
        self._late = False
        """Whether `error` means only that the server is still starting."""
        self._answered = False
        """Whether the server has ever answered. Before its first answer, the database may be
        incomplete, or only partly migrated to a newer MLflow."""
        self._seen = (self.answers, self.error)

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the server. Raises UserError if the site's options for it are invalid."""
        self._environment = environment
        self.began = time.monotonic()
        try:
            ready = self.server.prepare(environment)
        except (OSError, sqlite3.Error) as error:
            self._give_up(str(error))
            return
        with contextlib.suppress(FileNotFoundError):
            self._printed = self._output.stat().st_size
        self._children.start(self.server.NAME, self.server.words(), ready, self._output)

    def look(self) -> bool:
        """Check the server, restart it if necessary, and copy its database at intervals. Return
        whether `answers` or `error` has changed since the last call."""
        now = time.monotonic()
        if self.error and now > self._again:
            self.error, self._again = "", math.inf
            self._restart(now)
        elif not self.error or self._late:
            self._do(now)
        before, self._seen = self._seen, (self.answers, self.error)
        return self._seen != before

    def save(self) -> None:
        """Copy the database to the cluster's folder. An error, such as a full disk, is logged."""
        if not self._answered:
            return
        try:
            self.server.save()
        except (OSError, sqlite3.Error) as error:
            log.error("MLflow's database could not be copied to the cluster's folder: %s", error)

    def _do(self, now: float) -> None:
        ended = self._children.status(self.server.NAME) is not None
        if ended and self._answered:
            self._start_again(now)
        elif not self.answers:
            self._await(ended, now)
        elif now - self._saved > _SAVE_EACH_S:
            self._saved = now
            self.save()

    def _await(self, ended: bool, now: float) -> None:
        if not ended and self.server.answers(self._children.pid(self.server.NAME)):
            self.answers = self._answered = True
            self.error, self._late = "", False
            try:
                self.server.mark_answered()
            except OSError as error:
                log.warning("MLflow's database will not be copied if the head is killed: %s", error)
        elif ended:
            self._give_up(f"its server did not start: {self._end()}")
        elif now - self.began > _STARTS_S and not self._late:
            self.error, self._late = f"its server has not answered for {_STARTS_S:.0f} s", True
            log.warning("MLflow: %s; still waiting for it", self.error)

    def _start_again(self, now: float) -> None:
        why = self._end()  # the server's own child may still run and hold the port
        self._restarts = [then for then in self._restarts if now - then < _WITHIN_S]
        if len(self._restarts) >= _RESTARTS:
            self._give_up(f"its server ended repeatedly: {why}")
            return
        log.warning("MLflow's server ended (%s); starting it again", why)
        self._restart(now)

    def _restart(self, now: float) -> None:
        self._restarts.append(now)
        try:
            self.start(self._environment)
        except RaysuiteError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        self.answers, self.error, self._late = False, why, False
        self._again = time.monotonic() + _REST_S if self._answered else math.inf
        log.error("no MLflow server: %s; write runs later by `raysuite sync RESULTS`", why)

    def _end(self) -> str:
        """End the server's remaining processes; return how the server ended, and its last error."""
        why = self._children.how_ended(self.server.NAME)
        self._children.end(self.server.NAME, 5.0)
        try:
            printed = self._output.read_bytes()[self._printed :][-_TAIL:].decode("utf-8", "replace")
        except OSError as error:
            return f"{why}; {error}"
        lines = [line.strip() for line in printed.splitlines()]
        named = [line for line in lines if _NAMES_ERROR.search(line)]
        return f"{why}: {named[-1]}" if named else why


_NAMES_ERROR = re.compile(r"^(?!\(Background)(?!.*\b(INFO|WARNING)\b).*error", re.IGNORECASE)


# The head resumes suites as Ray jobs. A new head resumes all suites without a driver. A running
# head resumes suites whose driver was killed or failed on this host.

_PATIENCE_S = 180.0
"""Seconds for which a submission is repeated: on a busy node, the job server starts late."""
_LOOK_EACH_S = 5.0
_SUBMIT_S = 15.0
"""Time limit of one submission, in seconds: above the 10 s for which Ray's job server waits for its
agent."""


@dataclass(frozen=True)
class _Waiting:
    suite: Suite
    job: str
    until: float


class Resuming:
    """Submits suites that have to be resumed. A suite has at most one job at a time."""

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder
        self._left: dict[Path, _Waiting] = {}
        self._handed_in: dict[Path, str] = {}
        """Results folder -> the last job that was submitted for it."""
        self._next = math.inf

    def begin(self) -> None:
        """Find the suites to resume; called when Ray answers."""
        self._add(suites_to_resume(self._folder))

    def look(self, url: str) -> None:
        """Submit the remaining suites to Ray's dashboard at `url`.

        If the dashboard does not answer, the suite is submitted again at the next call, for up to
        _PATIENCE_S seconds.
        """
        dashboard = Dashboard(url, self._folder.token(), _SUBMIT_S)
        if time.monotonic() > self._next and self._folder.stop() is None:
            try:
                self._add(self._without_driver(dashboard))
            except NoAnswerError:
                return
        for results, waiting in list(self._left.items()):
            words = shlex.join(waiting.suite.words)
            try:
                self._hand_in(dashboard, waiting)
            except NoAnswerError as error:
                if time.monotonic() <= waiting.until:
                    return
                log.error("%s could not be resumed: %s", words, error)
            else:
                log.info("resumed as job %s: %s", waiting.job, words)
                taken_up(self._folder, results)
                self._handed_in[results] = waiting.job
            del self._left[results]

    def _add(self, suites: Sequence[Suite]) -> None:
        self._next = time.monotonic() + _LOOK_EACH_S
        until = time.monotonic() + _PATIENCE_S
        for suite in suites:
            job = suite.job or f"{RESUMED}{secrets.token_hex(6)}"
            self._left.setdefault(suite.results, _Waiting(suite, job, until))

    def _without_driver(self, dashboard: Dashboard) -> list[Suite]:
        """Suites whose driver died, except suites that a running job already resumes."""
        found = suites_to_resume(self._folder, head_is_new=False)
        if not found:
            return []
        running = {job.id for job in dashboard.jobs() if job.status in RUNNING}
        return [
            each.model_copy(update={"job": ""})  # a new id: the job with the old id has ended
            for each in found
            if self._handed_in.get(each.results) not in running
        ]

    def _hand_in(self, dashboard: Dashboard, waiting: _Waiting) -> None:
        # look for the job first: an earlier submission may have succeeded after its timeout
        if all(each.id != waiting.job for each in dashboard.jobs()):
            place, command = str(waiting.suite.folder), shlex.join(waiting.suite.words)
            dashboard.submit(f"cd {shlex.quote(place)} && exec {command}", waiting.job)


_COUNT_EACH_S = 2.0
"""Seconds between two counts of the nodes; until all have joined, they are counted more often."""
_WARNING_S = 60.0
"""Seconds from SLURM's warning to the end of the job, for a site without `warn_seconds`."""


class HeadNode:
    """Runs the head until a signal ends it. Raises NodeFailedError if Ray's head dies."""

    def __init__(self, node: ThisNode) -> None:
        self._node = node
        self._mlflow: MlflowKeeper | None = None
        self._outside = ""
        self._relay: Relay | None = None
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
        if node.folder.stop() is None:  # if the file exists, it already has a reason
            node.folder.write(Stop(reason="preempted", deadline=time.time()))

    def end(self) -> None:
        """End all processes, and copy MLflow's database to the cluster's folder."""
        try:
            self._node.end()
            self._end_relay()
            if self._mlflow:
                self._mlflow.save()
        finally:
            self._node.folder.over.touch()

    def _start(self) -> None:
        node = self._node
        node.address = find_address(node.cluster.site, None)
        self._outside = client_address(node.cluster.site, node.address)
        node.say("starting")
        why = ""
        for attempt in range(ray_start.TRIES):
            node.take_ports(attempt)
            self._relay_clients()
            began = time.monotonic()
            self._place_mlflow()
            self._tell_where()
            node.start_ray("", self._environment)
            if self._wait_for_ray():
                node.took("ray", began)
                break
            why = node.end_ray()
            if node.signals.ended:
                return
            log.warning("Ray's head did not start; trying other ports: %s", why)
        else:
            raise NodeFailedError(f"Ray's head did not start, in {ray_start.TRIES} attempts: {why}")
        self._count()
        if not node.signals.ended:
            if self._mlflow:  # only now: Ray's start needs all cores, and nothing waits for MLflow
                self._mlflow.start(self._environment)
            node.say("joined")
            self._resuming.begin()

    def _place_mlflow(self) -> None:
        """Choose the address of MLflow's server, which Ray's processes need before that server is
        started."""
        node = self._node
        options, port = node.cluster.site.mlflow, node.ports.mlflow
        server = MlflowServer(node.folder, options, node.address, port, node.temp, self._outside)
        self._mlflow = MlflowKeeper(server, node.children, node.folder.logs / "mlflow.log")
        self._environment = node.environment(server.url)

    def _relay_clients(self) -> None:
        node = self._node
        self._end_relay()
        if self._outside != node.address:
            ports = (node.ports.dashboard, node.ports.client, node.ports.mlflow)
            self._relay = Relay(self._outside, node.address, ports)

    def _end_relay(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def _tell_where(self) -> None:
        """Write the cluster's addresses, even before Ray answers: the other nodes then try to
        connect until Ray answers, so no time is lost."""
        node, mlflow = self._node, self._mlflow
        assert mlflow is not None
        node.folder.write(
            Head(
                host=node.place.host,
                gcs=f"{node.address}:{node.ports.gcs}",
                client=f"ray://{self._outside}:{node.ports.client}",
                dashboard=f"http://{self._outside}:{node.ports.dashboard}",
                mlflow="" if mlflow.error else f"http://{self._outside}:{node.ports.mlflow}",
                mlflow_answers=mlflow.answers,
                mlflow_error=mlflow.error,
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
        """Write the set of nodes that Ray counts as alive, if this set has changed."""
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
        )
        if found != self._alive:
            self._alive = found
            log.info("nodes alive: %s", ", ".join(found.addresses))
            try:
                self._node.folder.write(self._alive)
            except OSError as error:  # the disk may be full temporarily
                log.error("%s", error)
                self._alive = Alive()

    def _dashboard(self) -> Dashboard:
        return Dashboard(self._dashboard_url, self._node.folder.token())
