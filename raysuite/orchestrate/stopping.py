"""Requests to stop: how the driver of a suite receives them and passes them to its workers.

The driver reads its cluster's folder and receives signals. The driver notifies rank 0 through
RESULTS/stop.json, and creates this file before the first run: on a network file system, a reader
that opens a file gets its new content, but a new file may be invisible for a minute. In a sweep,
this file also names the runs that are to end for good.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.suites import Suite, is_to_be_resumed, register, unregister
from raysuite.errors import UserError
from raysuite.orchestrate.ray_cluster import check_listening
from raysuite.records import StopReason
from raysuite.train.stop_together import Prune, Signals, Stop

FILE = "stop.json"
_PRUNED = "pruned"
"""Key in the file; its value contains the runs that are to end for good: run id -> Prune."""
_AGENT_S = 1.0
"""Seconds to wait after a signal, so that the head's agent can record the signal if it has received
it too. `ray job stop` gives a driver 3 s to end."""
RESERVED_S = 3.0
"""Seconds before the deadline that the driver needs in order to end by itself."""


class StopWatch(Signals):
    """Detects whether this process's suite has to stop.

    `cluster` is the folder of the cluster in which the suite runs, if any; `within_s` is the number
    of seconds in which workers have to stop after a signal, because a signal has no deadline.
    Signals are handled within the context only.
    """

    def __init__(self, cluster: ClusterFolder | None, within_s: float) -> None:
        super().__init__(within_s, kept=True)
        self._cluster = cluster
        self._began = time.time()
        self._first: Stop | None = None
        self._seen_at = 0.0
        """Monotonic time at which the request was first seen."""
        self.on_final: Callable[[], None] = lambda: None
        """Called at once when a person ends the suite: this process may be killed soon after."""

    def request(self) -> Stop | None:
        """The first request to stop; if the cluster's request and a signal come at the same time,
        the cluster's request."""
        if self._first is None:
            self._first = self._of_cluster() or super().request()
            self._seen_at = time.monotonic()
            if self.is_final():
                self.on_final()
        return self._first

    @contextmanager
    def registered(self, suite: Suite) -> Iterator[None]:
        """Let the cluster resume this suite if its head or this driver dies before the end.

        A suite that has ended, or that a person ended, is not resumed.
        """
        cluster = self._cluster
        if cluster is None:
            yield
            return
        register(cluster, suite)
        withdraw = self.on_final = partial(unregister, cluster, suite.results)
        try:
            yield
        except BaseException as error:
            if not is_to_be_resumed(error):
                withdraw()
            raise
        if self.request() is None or self.is_final():
            withdraw()
        else:  # the suite was unregistered if the cluster's end was detected only after the signal
            register(cluster, suite)

    def is_final(self) -> bool:
        """Whether a person ended the suite, so that it is not resumed automatically. A suite that
        ended with its cluster is resumed, by the next start of its head or by `raysuite cluster up
        --resume`."""
        stop = self._of_cluster() or self._first
        return stop is not None and stop.reason == "interrupted" and not self._cluster_is_ending()

    def _cluster_is_ending(self) -> bool:
        """Whether the head's agent was asked to end, or Ray's head has died. If so, the agent sends
        SIGTERM to its processes."""
        if self._cluster is None:
            return False
        while not self._cluster.ending.exists():
            if not self._head_answers():
                return True
            if time.monotonic() > self._seen_at + _AGENT_S:
                return False
            time.sleep(_AGENT_S / 10)
        return True

    def _head_answers(self) -> bool:
        assert self._cluster is not None
        try:
            head = self._cluster.head()
            if head is not None:
                check_listening(head.gcs)
            return head is not None
        except (UserError, OSError):
            return False

    def _of_cluster(self) -> Stop | None:
        if self._cluster is None:
            return None
        with contextlib.suppress(UserError, OSError):  # an unreadable file, an unavailable disk
            found = self._cluster.stop()
            # a request of an earlier allocation is ignored
            if found is not None and found.deadline > self._began:
                return Stop(found.reason, found.deadline)
        return None


_writing = threading.Lock()
"""Lock for the file: a sweep's scheduler requests prunes in another thread."""


def request_stop(results: Path, stop: Stop | None) -> None:
    """Write a stop request for the workers of these results. With None, create the file before the
    first run, or clear an earlier request."""
    with _writing:
        _write(results, None if stop is None else asdict(stop))


def request_prune(results: Path, run_id: str, prune: Prune) -> None:
    """Request that the workers of one run of a sweep end this run for good."""
    with _writing:
        found = _read(results)
        _write(results, {**found, _PRUNED: {**found.get(_PRUNED, {}), run_id: asdict(prune)}})


def requested_stop(results: Path) -> Stop | None:
    """The driver's request to the workers of these results to stop; None if there is no request."""
    return _stop_of(_read(results))


def requested_end(results: Path, run_id: str) -> Stop | Prune | None:
    """The driver's request to the workers of a run, if there is one."""
    found = _read(results)
    if (stop := _stop_of(found)) is not None:
        return stop
    prune = found.get(_PRUNED, {}).get(run_id)
    return None if prune is None else Prune(**prune)


def _stop_of(found: dict[str, Any]) -> Stop | None:
    if found.get("reason") not in get_args(StopReason):
        return None
    return Stop(found["reason"], found["deadline"])


def _write(results: Path, content: dict[str, Any] | None) -> None:
    (results / FILE).write_text(json.dumps(content), "utf-8")


def _read(results: Path) -> dict[str, Any]:
    """The content of the driver's file; empty if it is null, missing, or being written."""
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] | None = json.loads((results / FILE).read_text("utf-8"))
        return found or {}
    return {}


def is_late(stop: Stop) -> bool:
    """Whether the time for workers to stop is over."""
    return stop.deadline is not None and time.time() > stop.deadline - RESERVED_S
