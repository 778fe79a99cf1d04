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
_TAIL = 10_000
"""Characters of the server's output in which its last error is looked for."""
log = logging.getLogger("raysuite.cluster")


class MlflowKeeper:
    """One server, as long as the head lives. Whatever becomes of it, the cluster goes on."""

    def __init__(self, server: MlflowServer, children: Children, output: Path) -> None:
        """`output` is the file that the server writes to."""
        self.server = server
        self.answers = False
        """Whether it has answered, and was not given up since."""
        self.error = ""
        """Why it was given up."""
        self.began = self._saved = time.monotonic()
        self._children, self._output = children, output
        self._environment: Mapping[str, str] = {}
        self._restarts = 0
        self._answered = False
        """Whether it ever has: until then the database may be half made, or half moved to a newer
        MLflow."""
        self._seen = (self.answers, self.error)

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the server. Raises UserError where the site's options for it do not hold."""
        self._environment = environment
        self.began = time.monotonic()
        try:
            ready = self.server.prepare(environment)
        except (OSError, sqlite3.Error) as error:
            self._give_up(str(error))
            return
        self._children.start(self.server.NAME, self.server.words(), ready, self._output)

    def look(self) -> bool:
        """Do what is due; whether `answers` or `error` changed."""
        if not self.error:
            self._do(time.monotonic())
        before, self._seen = self._seen, (self.answers, self.error)
        return self._seen != before

    def save(self) -> None:
        """Bring the database home; a disk that is full there is no reason to end anything."""
        if not self._answered:
            return
        try:
            self.server.save()
        except (OSError, sqlite3.Error) as error:
            log.error("MLflow's database could not be copied home: %s", error)

    def _do(self, now: float) -> None:
        ended = self._children.status(self.server.NAME) is not None
        if not self.answers:
            self._await(ended, now)
        elif ended:
            self._start_again()
        elif now - self._saved > _SAVE_EACH_S:
            self._saved = now
            self.save()

    def _await(self, ended: bool, now: float) -> None:
        if not ended and self.server.answers():
            self.answers = self._answered = True
            self._mark()
        elif ended or now - self.began > _STARTS_S:
            self._end()
            self._give_up(f"its server did not start: {self._last_error()}")

    def _mark(self) -> None:
        try:
            self.server.mark_answered()
        except OSError as error:
            log.warning("should the head be killed, MLflow's database stays away: %s", error)

    def _start_again(self) -> None:
        self._end()  # its own child may live on, and hold the port
        self._restarts += 1
        if self._restarts > _RESTARTS:
            self._give_up(f"its server ended again and again: {self._last_error()}")
            return
        log.warning("MLflow's server ended; starting it again")
        try:
            self.start(self._environment)
        except RaysuiteError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        self.answers, self.error = False, why
        log.error("no MLflow server: %s; `raysuite sync RESULTS` writes runs later", why)

    def _last_error(self) -> str:
        """The last line of the server's output that names an error, or the last one."""
        try:
            text = self._output.read_text("utf-8", "replace")[-_TAIL:]
        except OSError as error:
            return str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
        named = [line for line in lines if "Error" in line and not line.startswith("(Background")]
        return (named or lines)[-1]

    def _end(self) -> None:
        self._children.end(self.server.NAME, 5.0)
