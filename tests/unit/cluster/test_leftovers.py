"""What a killed agent left on its host, when the next one starts there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from raysuite.cluster import process
from raysuite.cluster.agent.leftovers import clear_away
from raysuite.cluster.agent.mlflow import ANSWERED
from raysuite.cluster.agent.node import node_variables
from raysuite.cluster.agent.place import Place
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.process import birth_of
from raysuite.cluster.state_files import Cluster
from tests.killed import kill_agent, said, stray, write
from tests.living import living
from tests.require import require

HEAD = Place("here", 0, "pid-2", None, None, None)
OTHER = Place("here", 1, "pid-2", None, None, None)


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


def keep_older(folder: ClusterFolder, text: str) -> None:
    """A kept database that is older than any that an agent leaves."""
    write(folder.mlflow / "mlflow.db", text)
    os.utime(folder.mlflow / "mlflow.db", (time.time() - 60,) * 2)


def test_it_is_removed_with_its_processes_and_the_database_comes_home(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    keep_older(folder, "older")
    kill_agent(folder, temp)
    heard: list[str] = []
    with stray(folder, temp) as process:
        (line,) = clear_away(folder, cluster, HEAD, heard.append)
        assert not psutil.pid_exists(process.pid)
    assert line == f"process {process.pid} had not ended with its agent; it was killed"
    assert heard == [f"MLflow's database is copied from {temp}"]
    assert not temp.exists()
    assert said(folder.mlflow / "mlflow.db") == "newer"


def test_a_process_that_inherited_nothing_from_the_agent_is_left_alone(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    kill_agent(folder, temp)
    log = temp / "raylet.err"
    log.touch()
    children = node_variables(folder, "127.0.0.1", "", temp, {})
    with (
        subprocess.Popen(["tail", "-f", str(log)]) as reader,
        subprocess.Popen(["sleep", "600"], env=children) as elsewhere,
    ):
        clear_away(folder, cluster, HEAD, print)
        alive = [process.poll() is None for process in (reader, elsewhere)]
        reader.kill()
        elsewhere.kill()
    assert alive == [True, True]
    assert not temp.exists()


def test_a_process_that_ray_renamed_is_known_by_its_open_logs(temp: Path) -> None:
    words = ["ray::RuntimeEnvAgent", "600"]
    with (
        (temp / "agent.log").open("w") as log,
        (temp / "lock").open("w") as lock,
        subprocess.Popen(words, executable="/bin/sleep", stdout=log) as agent,
        subprocess.Popen(words, executable="/bin/sleep") as elsewhere,
        # such as a worker that removes the folder itself
        subprocess.Popen(words, executable="/bin/sleep", stdin=lock) as remover,
    ):
        killed = process.kill_left_behind(str(temp))
        alive = [each.poll() is None for each in (elsewhere, remover)]
        elsewhere.kill()
        remover.kill()
    assert killed == [agent.pid]
    assert alive == [True, True]


def test_a_process_that_ends_meanwhile_hinders_nothing(
    folder: ClusterFolder, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stray(folder, temp) as first, stray(folder, temp) as second:
        seen = [psutil.Process(each.pid) for each in (first, second)]
        first.kill()
        first.wait()
        found = iter([seen, []])
        monkeypatch.setattr(process, "_left_behind", lambda _: next(found))
        assert process.kill_left_behind(str(temp)) == [second.pid]
        assert not psutil.pid_exists(second.pid)


def test_a_process_with_the_id_of_an_earlier_one_is_killed(
    folder: ClusterFolder, temp: Path
) -> None:
    require("root")  # to choose the id
    variables = node_variables(folder, "127.0.0.1", "", temp, {})  # runs processes of its own
    with stray(folder, temp, variables) as earlier:
        assert process.kill_left_behind(str(temp)) == [earlier.pid]
    time.sleep(0.05)  # psutil tells two processes with one id by when they began, in 1/100 s
    for _ in range(100):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(earlier.pid - 1))
        with stray(folder, temp, variables) as later:
            assert process.kill_left_behind(str(temp)) == [later.pid]
        if later.pid == earlier.pid:
            return
    pytest.fail("the id could not be had again")


def test_a_database_that_is_older_than_the_copy_stays_away(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    kill_agent(folder, temp)
    write(folder.mlflow / "mlflow.db", "of another host")
    os.utime(temp / "mlflow" / "mlflow.db", (time.time() - 60,) * 2)
    clear_away(folder, cluster, HEAD, print)
    assert not temp.exists()
    assert said(folder.mlflow / "mlflow.db") == "of another host"


def test_a_database_whose_server_never_answered_stays_away(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    keep_older(folder, "whole")
    kill_agent(folder, temp)
    (temp / "mlflow" / ANSWERED).unlink()
    assert clear_away(folder, cluster, HEAD, print) == []
    assert not temp.exists()
    assert said(folder.mlflow / "mlflow.db") == "whole"


def test_a_database_that_cannot_be_copied_stays_where_it_is(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    kill_agent(folder, temp)
    database = temp / "mlflow" / "mlflow.db"
    database.write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    (line,) = clear_away(folder, cluster, HEAD, print)
    assert f"it stays in {temp}" in line
    assert database.exists()
    assert not (folder.mlflow / "mlflow.db").exists()


@pytest.mark.parametrize("how", ["mode", "nonce", "link"])
def test_a_folder_that_is_not_the_agents_is_left_alone(
    folder: ClusterFolder, temp: Path, cluster: Cluster, tmp_path: Path, how: str
) -> None:
    keep_older(folder, "ours")
    kill_agent(folder, temp, nonce="a" if how == "nonce" else "own")
    if how == "mode":
        temp.chmod(0o750)
    if how == "link":
        link = tmp_path / "rs-link"
        link.symlink_to(temp)
        folder.write(folder.nodes()[0].model_copy(update={"temp": str(link)}))
    (line,) = clear_away(folder, cluster, HEAD, print)
    assert "is left alone" in line
    assert said(folder.mlflow / "mlflow.db") == "ours"
    assert (temp / "mlflow" / "mlflow.db").exists()


def test_a_database_that_a_second_user_left_is_not_taken_over(
    folder: ClusterFolder, temp: Path, cluster: Cluster, tmp_path: Path
) -> None:
    require("root")
    keep_older(folder, "ours")
    kill_agent(folder, temp)
    write(tmp_path / "theirs.db", "theirs")
    shutil.rmtree(temp)  # as where the host was started again
    imitate = "umask 077; mkdir -p $0/mlflow; cat >$0/mlflow/mlflow.db; touch $0/mlflow/answered"
    database = (tmp_path / "theirs.db").read_bytes()
    subprocess.run(["sh", "-c", imitate, str(temp)], user="nobody", input=database, check=True)
    found = clear_away(folder, cluster, HEAD, print)
    assert said(folder.mlflow / "mlflow.db") == "ours"
    assert len(found) == 1
    assert temp.exists()


def test_the_next_cluster_of_that_name_removes_what_a_job_left(
    temp: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    cluster = living()
    folder = prepare(cluster)
    keep_older(folder, "older")
    kill_agent(folder, temp)
    kill_agent(folder, tmp_path / "rs-other", host="elsewhere")
    for _ in range(2):
        prepare(cluster)
        assert folder.nodes() == []
    clear_away(folder, cluster, HEAD, print)
    assert not temp.exists()
    assert said(folder.mlflow / "mlflow.db") == "newer"
    assert [node.host for node in folder.left_nodes().values()] == ["elsewhere"]


def test_no_other_node_writes_the_database(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    kill_agent(folder, temp)
    clear_away(folder, cluster, OTHER, print)
    assert not temp.exists()
    assert not (folder.mlflow / "mlflow.db").exists()


def test_an_agent_that_lives_is_left_alone(
    folder: ClusterFolder, temp: Path, cluster: Cluster
) -> None:
    pid = os.getpid()
    kill_agent(folder, temp, pid=pid, birth=birth_of(pid))
    (line,) = clear_away(folder, cluster, HEAD, print)
    assert f"agent {pid} still runs" in line
    assert (temp / "mlflow" / "mlflow.db").exists()


def test_another_host_is_left_alone(folder: ClusterFolder, temp: Path, cluster: Cluster) -> None:
    kill_agent(folder, temp, host="elsewhere")
    clear_away(folder, cluster, HEAD, print)
    assert temp.exists()
