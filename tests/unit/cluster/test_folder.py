"""The folder of a cluster: who may read it, and what readers find."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import get_args

import pytest

from raysuite.cluster import private
from raysuite.cluster.folder import ClusterFolder, all_folders, current_folder, folder_of, prepare
from raysuite.cluster.state_files import Alive, Cluster, Head, Node, NodeState, Stop
from raysuite.errors import UserError
from raysuite.spec.site import LocalSite, SlurmSite
from tests.require import require


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAYSUITE_CLUSTER", raising=False)
    return tmp_path / "home"


def asked(name: str = "mine", **more: object) -> Cluster:
    given = {"site": LocalSite(), "nodes": 1, "created": 1.0, "working_folder": "/", **more}
    return Cluster.model_validate({"name": name, **given})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_may_read_any_of_it() -> None:
    before = os.umask(0)  # the worst that a user can have
    try:
        folder = prepare(asked())
        folder.write(Head(host="a", gcs="a:1", dashboard="http://a:2", mlflow=""))
        folder.write(Node(host="a", state="joined"))
    finally:
        os.umask(before)
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        *("cluster.json", "token", "mlflow.json", "head.json", "a.json")
    }
    assert {mode(path) for path in files} == {0o600}
    folders = [folder.path, folder.path.parent, *filter(Path.is_dir, folder.path.rglob("*"))]
    assert {mode(path) for path in folders} == {0o700}


def test_a_token_is_never_written_into_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "token").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        private.create(tmp_path / "token", "secret")
    assert (tmp_path / "target").read_text() == ""


def test_each_cluster_has_a_token_of_256_bits_of_its_own() -> None:
    tokens = {prepare(asked(name)).token() for name in ("one", "two", "two")}
    assert len(tokens) == 3
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}
    folder = folder_of("two")
    user = folder.mlflow_user()
    assert user is not None
    assert user.password != folder.token()


def test_what_is_written_is_read() -> None:
    site = SlurmSite(name="far", partition="gpu", time="1:00:00")
    cluster = asked(site=site, nodes=4, job="17")
    folder = prepare(cluster)
    assert folder.cluster() == cluster
    assert folder.cluster().backend == "slurm"
    assert (folder.head(), folder.stop(), folder.alive(), folder.nodes()) == (None, None, None, [])
    stop = Stop(reason="time_limit", deadline=12.5)
    folder.write(stop)
    folder.write(Alive(addresses=("10.0.0.1",)))
    assert folder.stop() == stop
    for index, host in ((2, "a"), (0, "z"), (1, "b")):
        folder.write(Node(host=host, index=index, state="starting"))
    assert [node.host for node in folder.nodes()] == ["z", "b", "a"]
    folder.forget(Stop)
    assert folder.stop() is None


def test_a_second_start_keeps_the_database_and_forgets_the_rest() -> None:
    folder = prepare(asked())
    (folder.mlflow / "mlflow.db").write_text("figures")
    folder.write(Node(host="a", state="joined"))
    (folder.logs / "agent.log").write_text("lines")
    (folder.suites / "a.json").write_text("{}")
    for resume, suites in ((True, ["a.json"]), (False, [])):
        folder.write(Stop(reason="down", deadline=1.0))
        for file in (folder.over, folder.end, folder.ending):
            file.touch()
        again = prepare(asked(), resume=resume)
        assert (again.mlflow / "mlflow.db").read_text() == "figures"
        assert (again.logs / "agent.log").read_text() == "lines"
        assert (again.nodes(), again.stop()) == ([], None)
        assert not any(file.exists() for file in (folder.over, folder.end, folder.ending))
        assert [file.name for file in folder.suites.iterdir()] == suites


def test_an_end_leaves_neither_secrets_nor_addresses() -> None:
    folder = prepare(asked())
    folder.write(Head(host="a", gcs="a:1", dashboard="http://a:2", mlflow=""))
    folder.write(Alive(addresses=("10.0.0.1",)))
    folder.write(Stop(reason="down", deadline=1.0))
    for _ in range(2):
        folder.forget_secrets()
        left = {path.name for path in folder.path.iterdir() if path.is_file()}
        assert left == {"cluster.json", "stop.json"}


def test_a_second_start_keeps_what_nodes_that_did_not_end_left_behind() -> None:
    folder = prepare(asked())
    for state in get_args(NodeState):
        folder.write(Node(host=state, state=state, temp=f"/tmp/rs-{state}"))
    folder.write(Node(host="nowhere", state="joined"))
    prepare(asked())
    assert folder.nodes() == []
    left = {node.host: node.temp for node in folder.left_nodes().values()}
    assert left == {state: f"/tmp/rs-{state}" for state in ("starting", "joined")}


def test_readers_find_whole_files_while_one_writes() -> None:
    folder = prepare(asked())
    folder.write(Node(host="a", state="starting", message="x" * 5000))
    done = threading.Event()

    def write() -> None:
        for length in range(5000, 5200):
            folder.write(Node(host="a", state="starting", message="x" * length))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while not done.is_set():
            (node,) = folder.nodes()
            assert len(node.message) >= 5000
    finally:
        thread.join()
    assert [path.name for path in (folder.path / "nodes").iterdir()] == ["a.json"]


def test_names_and_the_folder_of_all_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x" * 60, "7", "A.b_c-d"):
        assert folder_of(name).name == name
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for given, wanted in (("", ".raysuite"), ("~/mine", "mine"), ("here", "here")):
        monkeypatch.setenv("RAYSUITE_HOME", given)
        assert folder_of("a").path == tmp_path / wanted / "clusters" / "a"
        assert folder_of("a").lock == tmp_path / wanted / "clusters" / ".a.lock"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "a\nb", "$(id)", "x" * 61])
def test_what_can_be_no_name(name: str) -> None:
    with pytest.raises(UserError, match="cannot be called"):
        folder_of(name)


def test_a_damaged_file_is_told(own_home: Path) -> None:
    folder = prepare(asked())
    (folder.path / "head.json").write_text("{")
    with pytest.raises(UserError, match=r"head\.json cannot be read"):
        folder.head()
    with pytest.raises(UserError, match="contains no cluster"):
        ClusterFolder(own_home / "clusters" / "none").cluster()


def test_a_folder_of_another_user_is_refused() -> None:
    require("root")
    prepare(asked())
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="set RAYSUITE_HOME"):
            all_folders()
    finally:
        os.seteuid(0)


def test_folders_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_folders() == []
    assert current_folder() is None
    folders = [prepare(asked(name)) for name in ("b", "a")]
    assert [folder.name for folder in all_folders()] == ["a", "b"]
    monkeypatch.setenv("RAYSUITE_CLUSTER", str(folders[0].path))
    assert getattr(current_folder(), "name", None) == "b"
