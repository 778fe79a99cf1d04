"""Workers that one trial after the other has, in the process of Ray Tune that drives them.

Ray Tune reuses that process for the next trial. Its worker group stays for as long as trials alike
come within a few seconds; it ends with a trial that fails, and makes room where none comes.
"""

from __future__ import annotations

import secrets
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from raysuite.orchestrate.groups import Leg, make_trainer, work_config
from raysuite.plan import RunPlan, groups

_SERVE = "raysuite.orchestrate.worker:serve"
_IDLE_S = 5.0
"""How long workers without a trial keep their places, which another trial may wait for."""
_ANSWER_S = timedelta(seconds=30)
_POLL_S = 0.1


class WarmWorkers:
    """A worker group for trials alike, one after the other."""

    def __init__(self, plan: RunPlan, results: Path) -> None:
        self._first, self._results = plan, results
        self._lock = threading.Lock()
        self._store: Any = None
        self._job: dict[str, Any] | None = None
        self._number = -1
        self._ends = False
        self._idle_since = 0.0
        self.error: Exception | None = None
        """What ended the workers, if anything did."""
        self._secret = secrets.token_hex(32)
        self._trainer = make_trainer(
            [plan], results, work=_SERVE, began=self._began, secret=self._secret
        )
        self._thread = threading.Thread(target=self._fit, name="ray-train", daemon=True)

    def start(self, plan: RunPlan, leg: Leg | None, deadline: float | None) -> bool:
        """Begin a run, or a segment of it; False where these workers are not for it.

        A `deadline`, in seconds since 1970, ends the workers.
        """
        is_new = self._thread.ident is None
        if not is_new and len(groups([self._first, plan], one_node=False)) > 1:
            return False
        with self._lock:
            if self._ends or not (is_new or self._thread.is_alive()):
                return False
            for each in self._trainer.run_config.callbacks:
                each.follow([plan], deadline)
            self._job = work_config([plan], self._results, leg)
            self._number += 1
            self._tell(self._job)
        if is_new:
            self._thread.start()
            threading.Thread(target=self._end_when_idle, daemon=True).start()
        return True

    def busy(self) -> bool:
        """Whether the run that was begun still goes on."""
        with self._lock:
            if self._job is not None and (self._is_done() or not self._thread.is_alive()):
                self._job, self._idle_since = None, time.monotonic()
            return self._job is not None

    def end(self) -> None:
        """Let the workers go, and wait until their places are free."""
        with self._lock:
            self._let_go()
        self._thread.join()

    def _let_go(self) -> None:
        if not self._ends:
            self._ends = True
            self._number += 1
            self._tell(None)

    def _fit(self) -> None:
        try:
            self._trainer.fit()
        except Exception as error:
            self.error = error

    def _began(self, host: str, port: int) -> None:
        """New workers have a new store: the job that the last ones had is their first."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        store = TCPStore(host, port, timeout=_ANSWER_S)
        with self._lock:
            self._store, self._number = store, 0
            self._tell(self._job)

    def _tell(self, job: dict[str, Any] | None) -> None:
        from raysuite.orchestrate.meeting import signed

        if self._store is None:
            return
        try:
            self._store.set(f"job/{self._number}", signed(self._number, job, self._secret))
        except RuntimeError:  # rank 0's process has died: those that come are told anew
            self._store = None

    def _is_done(self) -> bool:
        if self._store is None:
            return False
        try:
            return bool(self._store.check([f"done/{self._number}"]))
        except RuntimeError:
            self._store = None
            return False

    def _end_when_idle(self) -> None:
        while self._thread.is_alive() and not self._ends:
            time.sleep(_POLL_S)
            with self._lock:
                if self._job is None and time.monotonic() > self._idle_since + _IDLE_S:
                    self._let_go()
