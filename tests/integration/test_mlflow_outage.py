"""An MLflow server that is away for a while in the middle of a suite or a sweep."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raysuite.cli.console import print_text
from raysuite.cluster.ports import free_port
from raysuite.orchestrate.tracking import Tracking
from raysuite.records import Results
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_sweeps import write_sweep
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

FOUR_RUNS = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace(
    "epochs: 6", "epochs: 2"
)


class Server:
    """MLflow's own, on loopback, with an SQLite database that outlives it."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder
        shutil.copy(store, folder / "server.db")
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"]
        words += ["--port", str(self._port), "--backend-store-uri", "sqlite:///server.db"]
        words += ["--artifacts-destination", "artifacts"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        until(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def query(self, question: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "server.db", timeout=120)) as connection:
            return connection.execute(question).fetchall()


@pytest.fixture
def server(tmp_path: Path, empty_store: Path) -> Iterator[Server]:
    """Not started yet."""
    (tmp_path / "server").mkdir()
    made = Server(tmp_path / "server", empty_store)
    yield made
    made.kill()


def grow(results: Results, whole: Results, places: list[int]) -> None:
    """Let runs end: their journals come to lie in the results."""
    for place in places:
        run_id = results.plans()[place]["run_id"]
        results.journal_file(run_id).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(whole.journal_file(run_id), results.journal_file(run_id))


def test_what_it_missed_comes_later_and_once(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    whole = write_results(tmp_path / "whole", spec=FOUR_RUNS)
    results = write_results(tmp_path / "results", spec=FOUR_RUNS, missing=range(4))
    tracking = Tracking(server.uri, print_text)
    grow(results, whole, [0, 1])
    tracking.sync(results)
    said = capsys.readouterr().err
    assert "not be written" in said
    assert "Nothing is lost" in said
    tracking.sync(results)
    assert capsys.readouterr() == ("", ""), "an outage is told once"

    server.start()
    grow(results, whole, [2])
    tracking.sync(results)
    assert server.query("select count(*) from runs") == [(1 + 3,)]
    grow(results, whole, [3])
    tracking.sync(results)
    assert capsys.readouterr() == ("", "")
    assert server.query("select count(*) from runs") == [(1 + 4,)]
    found = server.query("select run_uuid, key, step, value from metrics")
    assert len(found) == len(set(found))
    assert len([row for row in found if row[1] == "step/loss"]) == 4 * 2 * 23


@pytest.mark.thorough
def test_a_sweep_is_followed_beside_its_trials(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.start()
    whole = write_sweep(tmp_path / "whole", trials=4)
    results = write_sweep(tmp_path / "results", trials=4, missing=range(4))
    now = 0.0
    tracking = Tracking(server.uri, print_text, clock=lambda: now)
    states = "select status, count(*) from runs group by status order by status"
    ended = "select value from tags where key = 'raysuite.sweep.ended'"

    def follow() -> None:
        """As a sweep does, after a while, until what is sent has arrived, or has not."""
        nonlocal now
        now += 120.0
        tracking.follow(results)
        for thread in threading.enumerate():
            if thread.name == "mlflow":
                thread.join()
        tracking.follow(results)

    grow(results, whole, [0])
    tracking.follow(results)
    assert server.query(states) == [], "it sends nothing beside the first runs"
    follow()
    assert server.query(states) == [("FINISHED", 1), ("RUNNING", 1)]
    assert server.query(ended) == [("1",)]

    server.kill()
    assert capsys.readouterr() == ("", "")
    for count in (2, 3):
        grow(results, whole, [count - 1])
        follow()
        assert ("not be written" in capsys.readouterr().err) == (count == 2), "told once"

    server.start()
    grow(results, whole, [3])
    follow()
    assert server.query(states) == [("FINISHED", 4), ("RUNNING", 1)], "more may be decided"
    (results.folder / "best.yaml").write_text("name: best\n", "utf-8")
    tracking.sync(results, "KILLED")
    assert server.query(states) == [("FINISHED", 4), ("KILLED", 1)], "stopped between two trials"
    tracking.sync(results)
    assert server.query(states) == [("FINISHED", 5)]
    assert capsys.readouterr() == ("", "")
    found = server.query("select run_uuid, key, step, value from metrics")
    assert len(found) == len(set(found))
    steps = "select step from metrics where key = 'best/accuracy' order by step"
    assert server.query(steps) == [(1,), (2,), (3,), (4,)]
    assert len(list(server.folder.glob("artifacts/*/*/artifacts/best.yaml"))) == 1
