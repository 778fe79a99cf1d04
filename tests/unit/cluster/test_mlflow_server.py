"""The MLflow server's files: its password, and the way of its database."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path

import pytest

from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.cluster.files import Cluster, Mlflow
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.errors import UserError
from raysuite.spec.site import LocalSite, MlflowOptions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    site = LocalSite(name="local")
    return prepare(Cluster(name="mine", site=site, nodes=1, created=1.0, working_folder="/"))


def server(folder: ClusterFolder, temp: Path, options: MlflowOptions | None = None) -> MlflowServer:
    temp.mkdir(exist_ok=True)
    return MlflowServer(folder, options or MlflowOptions(), "127.0.0.1", 5000, temp)


def database(environment: dict[str, str]) -> Path:
    return Path(environment["MLFLOW_BACKEND_STORE_URI"].removeprefix("sqlite:///"))


def test_the_database_survives_the_node(folder: ClusterFolder, tmp_path: Path) -> None:
    first = server(folder, tmp_path / "a")
    here = database(first.prepare({}))
    assert here.is_relative_to(tmp_path / "a")
    with contextlib.closing(sqlite3.connect(here)) as writer:
        writer.execute("create table runs (name)")
        writer.execute("insert into runs values ('one')")
        writer.commit()
        first.save()  # while it is open
        kept = folder.mlflow / "mlflow.db"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    second = server(folder, tmp_path / "b")
    with contextlib.closing(sqlite3.connect(database(second.prepare({})))) as reader:
        assert reader.execute("select name from runs").fetchall() == [("one",)]
    assert [path.name for path in folder.mlflow.iterdir()] == ["mlflow.db"]


def test_a_server_that_starts_again_keeps_its_database(
    folder: ClusterFolder, tmp_path: Path
) -> None:
    (folder.mlflow / "mlflow.db").write_bytes(b"")
    again = server(folder, tmp_path / "a")
    with contextlib.closing(sqlite3.connect(database(again.prepare({})))) as writer:
        writer.execute("create table later (name)")
    with contextlib.closing(sqlite3.connect(database(again.prepare({})))) as reader:
        assert reader.execute("select name from sqlite_master").fetchall() == [("later",)]


def test_secrets_are_in_files_alone(folder: ClusterFolder, tmp_path: Path) -> None:
    made = server(folder, tmp_path / "a%b")
    environment = made.prepare({"MLFLOW_TRACKING_URI": "http://x", "OTHER": "kept"})
    user = folder.mlflow_user()
    assert user is not None
    shown = " ".join([*made.words(), *environment.values()])
    assert user.password not in shown
    assert folder.token() not in shown
    config = Path(environment["MLFLOW_AUTH_CONFIG_PATH"])
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert f"admin_password = {user.password}" in config.read_text()
    assert "a%%b" in config.read_text()  # mlflow reads it with interpolation
    assert "MLFLOW_TRACKING_URI" not in environment
    assert environment["OTHER"] == "kept"


def test_a_sites_own_database_is_named_in_a_file(folder: ClusterFolder, tmp_path: Path) -> None:
    url = "postgresql://me:secret@db/mlflow"
    (tmp_path / "url").write_text(url + "\n")
    options = MlflowOptions(backend="postgresql", url_file=str(tmp_path / "url"))
    made = server(folder, tmp_path / "a", options)
    assert made.prepare({})["MLFLOW_BACKEND_STORE_URI"] == url
    assert "secret" not in " ".join(made.words())
    made.save()
    assert not (folder.mlflow / "mlflow.db").exists()
    (tmp_path / "url").unlink()
    with pytest.raises(UserError, match=r"mlflow\.url_file .* cannot be read"):
        made.prepare({})


def test_a_missing_password_is_told(folder: ClusterFolder, tmp_path: Path) -> None:
    folder.forget(Mlflow)
    with pytest.raises(UserError, match=r"mlflow\.json is missing"):
        server(folder, tmp_path / "a").prepare({})
