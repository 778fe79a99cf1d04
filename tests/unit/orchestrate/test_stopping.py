"""Requests to stop: from the cluster's folder, by signals, and on to the workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Head
from raysuite.cluster.state_files import Stop as ClustersStop
from raysuite.cluster.suites import Suite, suites_to_resume
from raysuite.errors import UserError
from raysuite.orchestrate import stopping
from raysuite.orchestrate.ray_cluster import interrupted_afterwards
from raysuite.orchestrate.stopping import (
    FILE,
    StopWatch,
    is_late,
    request_prune,
    request_stop,
    requested_end,
    requested_stop,
)
from raysuite.train.stop_together import Prune, Stop


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterFolder:
    (tmp_path / "one").mkdir()
    return ClusterFolder(tmp_path / "one")


@pytest.mark.parametrize(
    ("number", "reason", "last"),
    [
        (signal.SIGTERM, "interrupted", True),
        (signal.SIGHUP, "interrupted", True),
        (signal.SIGUSR1, "time_limit", False),
    ],
)
def test_signals(number: signal.Signals, reason: str, last: bool) -> None:
    before = signal.getsignal(number)
    with StopWatch(None, 30.0) as watch:
        assert watch.request() is None
        assert not watch.is_final()
        calls: list[int] = []
        watch.on_final = lambda: calls.append(1)
        sent = time.time()
        os.kill(os.getpid(), number)
        stop = watch.request()
        assert stop is not None
        assert stop.reason == reason
        assert stop.deadline is not None
        assert sent + 29 < stop.deadline < time.time() + 31
        assert watch.is_final() == last
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.request() == stop, "the first one counts"
        assert calls == [1] * last
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("reason", "last"), [("time_limit", False), ("preempted", False), ("down", False)]
)
def test_the_clusters_own_request(cluster: ClusterFolder, reason: str, last: bool) -> None:
    with StopWatch(cluster, 30.0) as watch:
        assert watch.request() is None
        deadline = time.time() + 100
        cluster.write(ClustersStop.model_validate({"reason": reason, "deadline": deadline}))
        assert watch.request() == Stop(reason, deadline)  # type: ignore[arg-type]
        assert watch.is_final() == last


@pytest.mark.parametrize(
    ("left_s", "late"), [(60.0, False), (4.0, False), (2.0, True), (-1.0, True)]
)
def test_the_driver_keeps_three_seconds_for_its_own_end(left_s: float, late: bool) -> None:
    assert is_late(Stop("time_limit", time.time() + left_s)) == late
    assert not is_late(Stop("time_limit"))


@pytest.fixture
def gcs(cluster: ClusterFolder) -> Iterator[socket.socket]:
    """Where the cluster's head answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        gcs = f"127.0.0.1:{server.getsockname()[1]}"
        cluster.write(Head(host="a", gcs=gcs, dashboard="", mlflow=""))
        yield server


def test_a_signal_that_comes_with_the_clusters_request_is_no_persons(
    cluster: ClusterFolder, gcs: socket.socket
) -> None:
    with StopWatch(cluster, 30.0) as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        stop = watch.request()
        assert stop is not None
        assert watch.is_final()
        cluster.write(ClustersStop(reason="preempted", deadline=time.time() + 9))
        assert watch.request() == stop
        assert not watch.is_final(), "the cluster comes back, and the suite with it"


def test_a_signal_from_the_agent_of_a_head_that_died_is_no_persons(
    cluster: ClusterFolder, gcs: socket.socket
) -> None:
    gcs.close()
    with StopWatch(cluster, 30.0) as watch:
        calls: list[int] = []
        watch.on_final = lambda: calls.append(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.request() is not None
        (cluster.path / "head.json").unlink()
        assert not watch.is_final(), "between two starts of the head"
    assert calls == []


def test_a_signal_that_the_heads_agent_gets_too_is_no_persons(
    cluster: ClusterFolder, gcs: socket.socket
) -> None:
    with StopWatch(cluster, 30.0) as watch:
        calls: list[int] = []
        watch.on_final = lambda: calls.append(1)
        os.kill(os.getpid(), signal.SIGTERM)
        told = threading.Timer(0.3, cluster.ending.touch)
        told.start()
        assert watch.request() is not None
        assert not watch.is_final()
        told.join()
    assert calls == []


@pytest.mark.parametrize(
    ("how", "resumed"),
    [
        ("end", False),
        (UserError("a mistake"), False),
        (KeyboardInterrupt(), False),
        (OSError("no disk"), True),
        ("SIGTERM", False),
        ("preempted", True),
        ("preempted after SIGTERM", True),
    ],
    ids=str,
)
def test_a_suite_is_resumed_by_its_cluster_unless_it_ended_or_a_person_ended_it(
    cluster: ClusterFolder,
    gcs: socket.socket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: Any,
    resumed: bool,
) -> None:
    monkeypatch.setattr(stopping, "_AGENT_S", 0.0)
    (results := tmp_path / "results").mkdir()
    (results / "plan.json").touch()
    raises = isinstance(how, BaseException)
    with (
        StopWatch(cluster, 30.0) as watch,
        pytest.raises(type(how)) if raises else contextlib.nullcontext(),
        watch.registered(Suite(results=results, folder=tmp_path)),
    ):
        assert len(suites_to_resume(cluster)) == 1
        if raises:
            raise how
        if "SIGTERM" in how:
            os.kill(os.getpid(), signal.SIGTERM)
            watch.request()
        if "preempted" in how:
            cluster.write(ClustersStop(reason="preempted", deadline=time.time() + 9))
    assert len(suites_to_resume(cluster)) == resumed


def test_what_an_earlier_allocation_left_counts_no_longer(cluster: ClusterFolder) -> None:
    cluster.write(ClustersStop(reason="time_limit", deadline=time.time() - 1))
    with StopWatch(cluster, 30.0) as watch:
        assert watch.request() is None
    (cluster.path / "stop.json").write_text("{")
    with StopWatch(cluster, 30.0) as watch:
        assert watch.request() is None


def test_requests_are_in_a_file_that_exists_before_the_runs(tmp_path: Path) -> None:
    assert requested_stop(tmp_path) is None
    request_stop(tmp_path, None)
    assert requested_stop(tmp_path) is None
    inode = (tmp_path / FILE).stat().st_ino
    for stop in (Stop("preempted", 12.5), Stop("interrupted")):
        request_stop(tmp_path, stop)
        assert requested_stop(tmp_path) == stop
    assert (tmp_path / FILE).stat().st_ino == inode


def test_a_run_is_pruned_and_others_are_not_until_all_are_stopped(tmp_path: Path) -> None:
    request_stop(tmp_path, None)
    prunes = {run_id: Prune("asha", 0.5, f"behind {run_id}") for run_id in "ab"}
    for run_id, prune in prunes.items():
        request_prune(tmp_path, run_id, prune)
    assert [requested_end(tmp_path, run_id) for run_id in "abc"] == [*prunes.values(), None]
    assert requested_stop(tmp_path) is None
    stop = Stop("preempted", 12.5)
    request_stop(tmp_path, stop)
    request_prune(tmp_path, "c", prunes["a"])
    assert [requested_end(tmp_path, run_id) for run_id in "abc"] == [stop] * 3
    request_stop(tmp_path, None)
    assert requested_end(tmp_path, "c") is None


@pytest.mark.parametrize("text", ["", '{"reason": "time', "[]", "{}", '{"reason": "x"}'])
def test_half_a_file_is_read_again_later(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert requested_stop(tmp_path) is None


def test_every_reason_of_a_cluster_is_one_of_a_run(tmp_path: Path) -> None:
    for reason in ClustersStop.model_json_schema()["properties"]["reason"]["enum"]:
        (tmp_path / FILE).write_text(json.dumps({"reason": reason, "deadline": None}))
        assert requested_stop(tmp_path) == Stop(reason)


@pytest.mark.parametrize(("presses", "reached"), [(1, True), (2, False)])
def test_ctrl_c_while_ray_starts(presses: int, reached: bool) -> None:
    came = []

    def start() -> None:
        with interrupted_afterwards():
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
            came.append(True)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert came == [True] * reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
