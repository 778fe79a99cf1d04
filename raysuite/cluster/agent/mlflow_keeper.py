"""On the head: starts MLflow's server, starts it again where it ends, brings its database home."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from raysuite.cluster.agent.children import Children
from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.errors import RaysuiteError

_RESTARTS = 5
_STARTS_S = 240.0
"""From its start to its first answer, on a busy node."""
_SAVE_EACH_S = 180.0
log = logging.getLogger("raysuite.cluster")


class MlflowKeeper:
    """One server, as long as the head lives. Whatever becomes of it, the cluster goes on."""

    def __init__(self, server: MlflowServer, children: Children, output: Path) -> None:
        """`output` is the file that the server writes to."""
        self.server = server
        self.answers = False
        """Whether it has answered once."""
        self.began = self._saved = time.monotonic()
        self._children, self._output = children, output
        self._environment: Mapping[str, str] = {}
        self._restarts = 0
        self._given_up = False

    @property
    def never_came(self) -> bool:
        """Whether it was given up before its first answer."""
        return self._given_up and not self.answers

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the server. Raises UserError where the site's options for it do not hold."""
        self._environment = environment
        self.began = time.monotonic()
        ready = self.server.prepare(environment)
        self._children.start(self.server.NAME, self.server.words(), ready, self._output)

    def look(self) -> bool:
        """Do what is due; whether it answers for the first time, or never will."""
        if self._given_up:
            return False
        now = time.monotonic()
        ended = self._children.status(self.server.NAME) is not None
        if not self.answers:
            return self._await(ended, now)
        if ended:
            self._start_again()
        elif now - self._saved > _SAVE_EACH_S:
            self._saved = now
            self.save()
        return False

    def save(self) -> None:
        """Bring the database home; a disk that is full there is no reason to end anything."""
        if not self.answers:
            return  # it may be half made, or half moved to a newer MLflow
        try:
            self.server.save()
        except (OSError, sqlite3.Error) as error:
            log.error("MLflow's database could not be copied home: %s", error)

    def _await(self, ended: bool, now: float) -> bool:
        if not ended and self.server.answers():
            self.answers = True
            self._mark()
        elif ended or now - self.began > _STARTS_S:
            log.error("MLflow's server did not start; logs/mlflow.log says why")
            self._end()
            self._given_up = True
        return self.answers or self._given_up

    def _mark(self) -> None:
        try:
            self.server.mark_answered()
        except OSError as error:
            log.warning("should the head be killed, MLflow's database stays away: %s", error)

    def _start_again(self) -> None:
        self._end()  # its own child may live on, and hold the port
        self._restarts += 1
        if self._restarts > _RESTARTS:
            log.error("MLflow's server ended again and again; runs are replayed by `sync`")
            self._given_up = True
            return
        log.warning("MLflow's server ended; starting it again")
        try:
            self.start(self._environment)
        except (OSError, sqlite3.Error, RaysuiteError) as error:
            log.error("MLflow's server cannot be started again: %s", error)
            self._given_up = True

    def _end(self) -> None:
        self._children.end(self.server.NAME, 5.0)
