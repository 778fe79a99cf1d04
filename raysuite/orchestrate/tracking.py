"""Send Records from the journals to MLflow during runs and sweeps. If MLflow cannot be reached, no
Record is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from raysuite.orchestrate import registration

if TYPE_CHECKING:
    from raysuite.records import Results
    from raysuite.track.upload import ParentStatus

_FIRST_S, _LEAST_REST_S = 120.0, 30.0
"""Seconds until Records are first sent during runs, and minimum seconds between two transfers."""
_REST = 20.0
"""Pause after sending, as a multiple of its duration: sending takes at most 5 % of the time."""
_PATIENCE_S = 60.0
"""Maximum seconds to wait for MLflow's import and store, before the first run and at the end."""
_NICENESS = 10
"""Niceness of the thread that sends during runs: the runs have priority."""


class Tracking:
    """Sends the journals to MLflow. Each outage of MLflow is reported only once."""

    def __init__(
        self,
        uri: str | None,
        show: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`show` prints a text on stdout or, with `error=True`, on stderr."""
        self._uri, self._show, self._clock, self._patience_s = uri, show, clock, patience_s
        self._is_shown = False
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()
        self._beside: threading.Thread | None = None
        self._outage = ""
        self._sent_bytes = 0
        self._rests_until = clock() + _FIRST_S

    def _prepare(self) -> None:
        from raysuite.track import prepare  # imported on use: it imports MLflow

        prepare(self._uri)

    def ready(self) -> bool:
        """Wait until MLflow is imported and its store is open. If that takes too long, return
        False; the import and the opening then continue during the runs."""
        self._preparing.join(self._patience_s)
        slow = self._preparing.is_alive()
        if slow:
            os.setpriority(os.PRIO_PROCESS, self._preparing.native_id or 0, _NICENESS)
            self._show_once(
                f"MLflow is not ready after {self._patience_s:.0f} s: records are sent as soon as "
                "it is; if it is not ready at the end, send them by `raysuite sync RESULTS`"
            )
        return not slow

    def sync(self, results: Results, status: ParentStatus | None = None) -> str:
        """Send the journals' new Records, and wait until they are sent. Return the URL at which
        MLflow shows them (without a server: how to see them), or "" after an error. `status`: the
        suite's state, if it does not follow from the states of its runs."""
        from raysuite.track import sync

        if not self.ready():
            return ""
        if self._beside is not None:
            self._beside.join()
        summary = sync(results, self._uri, status=status)
        self._show_once("" if summary.ok else str(summary))
        return summary.shown

    def follow(self, results: Results) -> None:
        """Send the journals' new Records in a thread during the runs, with pauses.

        Call this method repeatedly; it returns at once.
        """
        if self._beside is not None:
            if self._beside.is_alive():
                return
            self._beside = None
            self._show_once(self._outage)
        if self._clock() < self._rests_until or self._preparing.is_alive():
            return
        journals = results.folder.glob("runs/*/journal.jsonl")
        size = sum(file.stat().st_size for file in journals)
        self._rests_until = self._clock() + _LEAST_REST_S
        if size != self._sent_bytes:
            self._sent_bytes = size
            self._beside = threading.Thread(
                target=self._send, args=(results,), name="mlflow", daemon=True
            )
            self._beside.start()

    def _send(self, results: Results) -> None:
        from raysuite.track import sync

        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        began = self._clock()
        summary = sync(results, self._uri, status="RUNNING")
        self._outage = "" if summary.ok else str(summary)
        now = self._clock()
        self._rests_until = now + max(_LEAST_REST_S, _REST * (now - began))

    def _show_once(self, outage: str) -> None:
        if outage and not self._is_shown:
            self._show(outage, error=True)
        self._is_shown = bool(outage)

    def register(self, results: Results, silent: bool) -> None:
        """Register a sweep's best network, or print the reason why there is none."""
        from raysuite.track.sync import one_line

        if self._preparing.is_alive():
            return
        try:
            run_id, note = registration.best_run(results)
            done = registration.register_run(results, run_id, tracking_uri=self._uri)
        except Exception as error:  # any error: the sweep itself has succeeded
            self._show(f"no model is registered: {one_line(error)}", error=True)
            return
        if note:
            self._show(note, error=True)
        if done.ok and not silent:
            self._show(str(done))
        elif not done.ok and not self._is_shown:
            self._show(str(done), error=True)
