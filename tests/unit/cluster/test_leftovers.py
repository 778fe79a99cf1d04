"""What a killed agent left on its host, when the next one starts there."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from raysuite.cluster import local
from raysuite.cluster.agent.environment import node_variables
from raysuite.cluster.agent.leftovers import clear_away
from raysuite.cluster.agent.place import Place
from raysuite.cluster.files import Cluster, Node
from raysuite.cluster.folder import ClusterFolder
from tests.living import living

HEAD = Place("here", 0, 0, "pid-2", None, None, None)
OTHER = Place("here", 1, 0, "pid-2", None, None, None)


@pytest.fixture
def cluster() -> Cluster:
    return living()


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    for name in ("nodes", "mlflow"):
        (tmp_path / name).mkdir()
    return ClusterFolder(tmp_path)


@pytest.fixture
def temp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rs-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def left(folder: ClusterFolder, temp: Path, **values: object) -> None:
    """An agent of this host that has ended, with its database."""
    (temp / "mlflow").mkdir()
    write(temp / "mlflow" / "mlflow.db", "newer")
    ended = subprocess.Popen(["true"])
    ended.wait()
    said = {"host": "here", "state": "joined", "pid": ended.pid, "temp": str(temp), **values}
    folder.write(Node.model_validate(said))


@contextmanager
def stray(folder: ClusterFolder, temp: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that node, with the environment that its agent gives."""
    words = ["bash", "-c", "sleep 600; true", f"{temp}/r/stray"]
    variables = node_variables(folder, "127.0.0.1", "", temp, {})
    with subprocess.Popen(words, env=variables, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def write(database: Path, word: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table said (word)")
        connection.execute("insert into said values (?)", (word,))


def said(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("select word from said").fetchone()[0])


def test_it_is_removed_with_its_processes_and_the_database_comes_home(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    write(folder.mlflow / "mlflow.db", "older")
    os.utime(folder.mlflow / "mlflow.db", (time.time() - 60,) * 2)
    left(folder, temp)
    with stray(folder, temp) as process:
        clear_away(folder, cluster, HEAD)
        assert not psutil.pid_exists(process.pid)
    assert not temp.exists()
    assert said(folder.mlflow / "mlflow.db") == "newer"


def test_a_process_that_inherited_nothing_from_the_agent_is_left_alone(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    left(folder, temp)
    log = temp / "raylet.err"
    log.touch()
    children = node_variables(folder, "127.0.0.1", "", temp, {})
    with (
        subprocess.Popen(["tail", "-f", str(log)]) as reader,
        subprocess.Popen(["sleep", "600"], env=children) as elsewhere,
    ):
        clear_away(folder, cluster, HEAD)
        alive = [process.poll() is None for process in (reader, elsewhere)]
        reader.kill()
        elsewhere.kill()
    assert alive == [True, True]
    assert not temp.exists()


def test_a_process_that_ends_meanwhile_hinders_nothing(
    folder: ClusterFolder, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stray(folder, temp) as first, stray(folder, temp) as second:
        seen = [psutil.Process(process.pid) for process in (first, second)]
        first.kill()
        first.wait()
        monkeypatch.setattr(local, "_left_behind", lambda _: seen)
        assert local.kill_left_behind(str(temp)) == [second.pid]
        assert not psutil.pid_exists(second.pid)


def test_a_database_that_is_older_than_the_copy_stays_away(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    left(folder, temp)
    write(folder.mlflow / "mlflow.db", "of another host")
    os.utime(temp / "mlflow" / "mlflow.db", (time.time() - 60,) * 2)
    clear_away(folder, cluster, HEAD)
    assert not temp.exists()
    assert said(folder.mlflow / "mlflow.db") == "of another host"


def test_no_other_node_writes_the_database(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    left(folder, temp)
    clear_away(folder, cluster, OTHER)
    assert not temp.exists()
    assert not (folder.mlflow / "mlflow.db").exists()


def test_an_agent_that_lives_is_left_alone(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    us = psutil.Process()
    left(folder, temp, pid=us.pid, began=us.create_time())
    clear_away(folder, cluster, HEAD)
    assert (temp / "mlflow" / "mlflow.db").exists()


def test_another_host_is_left_alone(folder: ClusterFolder, temp: Path, cluster: Cluster) -> None:
    left(folder, temp, host="elsewhere")
    clear_away(folder, cluster, HEAD)
    assert temp.exists()
