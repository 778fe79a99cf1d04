"""MLflow beside `raysuite run` and `raysuite sweep`: fed from journals, missed without harm."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from raysuite.cli import console
from raysuite.errors import RaysuiteError
from raysuite.records import Results

if TYPE_CHECKING:
    from raysuite.track.upload import ParentStatus

_LEAST_REST_S = 5.0
_REST = 20.0
"""What goes on beside runs rests so many times as long as it took: 5 % of the time at most."""
_NICENESS = 10
"""Of what goes on beside runs: they have the processors first."""


class Tracking:
    """MLflow, fed from the journals; an outage is told once."""

    def __init__(self, uri: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri, self._clock = uri, clock
        self._told = False
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()
        self._beside: threading.Thread | None = None
        self._outage = ""
        self._ended = -1
        self._rests_until = 0.0

    def _prepare(self) -> None:
        from raysuite.track import prepare

        prepare(self._uri)

    def ready(self) -> None:
        """Wait until MLflow is loaded and its store is open."""
        self._preparing.join()

    def sync(self, results: Results, status: ParentStatus | None = None) -> None:
        """Send what the journals gained, while no run is at work.

        `status`: how the whole stands, where its runs do not tell it.
        """
        from raysuite.track import sync

        self.ready()
        if self._beside is not None:
            self._beside.join()
        summary = sync(results, self._uri, status=status)
        self._tell("" if summary.ok else str(summary))

    def follow(self, results: Results, ended: int) -> None:
        """Send what the journals gained beside the runs, of which so many have ended.

        To be called now and then; it returns at once. It sends at the first call and after runs
        that ended, one time after the other, with rests.
        """
        if self._beside is not None:
            if self._beside.is_alive():
                return
            self._beside = None
            self._tell(self._outage)
        if ended != self._ended and self._clock() >= self._rests_until:
            self._ended = ended
            self._beside = threading.Thread(
                target=self._send, args=(results,), name="mlflow", daemon=True
            )
            self._beside.start()

    def _send(self, results: Results) -> None:
        from raysuite.track import sync

        self.ready()
        if sys.platform == "linux":  # where a thread has a niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        began = self._clock()
        try:
            summary = sync(results, self._uri, status="RUNNING")
            self._outage = "" if summary.ok else str(summary)
        except RaysuiteError as error:  # it is raised when nothing is at work any more
            self._outage = str(error)
        now = self._clock()
        self._rests_until = now + max(_LEAST_REST_S, _REST * (now - began))

    def _tell(self, outage: str) -> None:
        if outage and not self._told:
            console.print_text(outage, error=True)
        self._told = bool(outage)

    def register(self, results: Results, silent: bool) -> None:
        """Register a sweep's best network; why there is none is told, and no more comes of it."""
        from raysuite.cli.register import register_best

        try:
            done, note = register_best(results, tracking_uri=self._uri)
        except RaysuiteError as error:
            console.print_text(f"no model is registered: {error}", error=True)
            return
        if note:
            console.print_text(note, error=True)
        if done.ok and not silent:
            console.print_text(str(done))
        elif not done.ok and not self._told:
            console.print_text(str(done), error=True)
