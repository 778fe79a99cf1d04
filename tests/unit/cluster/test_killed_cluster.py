"""A cluster on this machine whose agent was killed: taken down, or started anew."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from raysuite.cluster.agent.place import find_place
from raysuite.cluster.client import down, status_of
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.state_files import Cluster
from raysuite.spec.site import SlurmSite
from tests.killed import kill_agent, said, stray
from tests.living import living


@pytest.fixture
def temp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rs-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def folder(tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    """Of a cluster that is gone without a word."""
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    gone = living().model_copy(update={"birth": "another"})
    folder = prepare(gone)
    kill_agent(folder, temp, host=find_place(gone.site).host)
    assert status_of(folder).state == "stale"
    return folder


def test_down_brings_the_database_home_and_removes_the_rest(
    folder: ClusterFolder, temp: Path
) -> None:
    heard: list[str] = []
    with stray(folder, temp) as process:
        (line,) = down(folder, 0.0, heard.append)
        assert not psutil.pid_exists(process.pid)
    assert f"process {process.pid} had not ended" in line
    assert heard == [f"MLflow's database is copied from {temp}"]
    assert said(folder.mlflow / "mlflow.db") == "newer"
    assert not temp.exists()
    assert not folder.token_file.exists()
    assert (status_of(folder).state, status_of(folder).why) == ("ended", "taken down")
    assert down(folder, 0.0) == []


def test_up_brings_the_database_home_and_removes_the_rest(
    folder: ClusterFolder, temp: Path, tmp_path: Path
) -> None:
    site = tmp_path / "mine.yaml"
    site.write_text("kind: local\npython: /bin/true\n")
    up = [sys.executable, "-m", "raysuite", "cluster", "up", "--site", str(site), "--no-wait"]
    with (
        stray(folder, temp) as process,
        subprocess.Popen(up, stderr=subprocess.PIPE, text=True) as command,
    ):
        assert process.wait(120) == -signal.SIGKILL
        told = command.communicate()[1].splitlines()
    assert command.returncode == 0
    assert told[:2] == [
        f"MLflow's database is copied from {temp}",
        f"process {process.pid} had not ended with its agent; it was killed",
    ]
    assert said(folder.mlflow / "mlflow.db") == "newer"
    assert not temp.exists()


def test_what_opened_it_is_forgotten_also_when_down_breaks_off(folder: ClusterFolder) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        down(folder, 0.0, interrupted)
    assert not folder.token_file.exists()
    assert folder.mlflow_user() is None


def test_nodes_of_slurm_are_left_to_their_user(folder: ClusterFolder, temp: Path) -> None:
    site = SlurmSite(name="far")
    folder.write(Cluster(name="mine", site=site, nodes=1, created=1.0, working_folder="/"))
    status = status_of(folder)
    assert status.state == "stale"
    assert f"{folder.path}/nodes/HOST.json" in status.why
    assert down(folder, 0.0) == []
    assert temp.exists()
    assert status_of(folder).state == "ended"
