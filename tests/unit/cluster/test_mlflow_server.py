"""The MLflow server's files: its password, and the way of its database."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.state_files import Cluster, Mlflow
from raysuite.errors import MissingPartError, UserError
from raysuite.spec.site import LocalSite, MlflowOptions
from tests.killed import said, write

URL = "postgresql://me:secret@db/mlflow"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    site = LocalSite(name="local")
    return prepare(Cluster(name="mine", site=site, nodes=1, created=1.0, working_folder="/"))


def server(folder: ClusterFolder, temp: Path, options: MlflowOptions | None = None) -> MlflowServer:
    temp.mkdir(exist_ok=True)
    return MlflowServer(folder, options or MlflowOptions(), "127.0.0.1", 5000, temp)


def database(environment: dict[str, str]) -> Path:
    return Path(str(make_url(environment["MLFLOW_BACKEND_STORE_URI"]).database))


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


def test_browsers_may_come_through_a_tunnel_of_another_port(
    folder: ClusterFolder, tmp_path: Path
) -> None:
    hosts = server(folder, tmp_path / "a").prepare({})["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    for name in ("127.0.0.1", "localhost"):
        assert {name, f"{name}:*"} <= set(hosts)


def test_the_children_of_the_server_import_no_modules_of_the_working_folder(
    folder: ClusterFolder, tmp_path: Path
) -> None:
    """MLflow's server starts `python -m uvicorn` without -P."""
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    code = subprocess.call(
        [sys.executable, "-m", "json.tool", "--help"],
        cwd=tmp_path,
        env=server(folder, tmp_path).prepare(os.environ),
        stdout=subprocess.DEVNULL,
    )
    assert code == 0


def test_a_database_that_comes_in_half_is_not_there(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder.mlflow / "mlflow.db", "kept")
    killed = server(folder, tmp_path / "a")
    seen: list[bool] = []
    connect = sqlite3.connect

    def watched(database: Path) -> sqlite3.Connection:
        seen.append((tmp_path / "a" / "mlflow" / "mlflow.db").exists())
        return connect(database)

    monkeypatch.setattr("raysuite.cluster.agent.mlflow.sqlite3.connect", watched)
    here = database(killed.prepare({}))
    assert seen == [False, False, False]
    assert said(here) == "kept"
    assert stat.S_IMODE(here.stat().st_mode) == 0o600


def test_a_server_that_starts_again_keeps_its_database(
    folder: ClusterFolder, tmp_path: Path
) -> None:
    write(folder.mlflow / "mlflow.db", "kept")
    again = server(folder, tmp_path / "a")
    with contextlib.closing(sqlite3.connect(database(again.prepare({})))) as writer:
        writer.execute("create table later (name)")
    with contextlib.closing(sqlite3.connect(database(again.prepare({})))) as reader:
        tables = reader.execute("select name from sqlite_master").fetchall()
    assert tables == [("said",), ("later",)]


def test_secrets_are_in_files_alone(folder: ClusterFolder, tmp_path: Path) -> None:
    made = server(folder, tmp_path / "a%b")
    others = {
        "MLFLOW_TRACKING_URI": "http://x",
        "MLFLOW_AUTH_ADMIN_PASSWORD": "known to others",
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "false",
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
    }
    environment = made.prepare({**others, "OTHER": "kept"})
    user = folder.mlflow_user()
    assert user is not None
    shown = " ".join([*made.words(), *environment.values()])
    assert user.password not in shown
    assert folder.token() not in shown
    config = Path(environment["MLFLOW_AUTH_CONFIG_PATH"])
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert f"admin_password = {user.password}" in config.read_text()
    assert "a%%25b" in config.read_text()  # mlflow reads it with interpolation
    assert not set(others) & set(environment)
    assert environment["OTHER"] == "kept"


def site_database(
    folder: ClusterFolder, tmp_path: Path, url: str, mode: int = 0o600
) -> MlflowServer:
    """A server with a URL in a file of that mode."""
    file = tmp_path / "url"
    file.write_text(url + "\n")
    file.chmod(mode)
    options = MlflowOptions(backend="postgresql", url_file=str(file))
    return server(folder, tmp_path / "a", options)


def test_a_sites_own_database_is_named_in_a_file(folder: ClusterFolder, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    made = site_database(folder, tmp_path, URL)
    assert made.prepare({})["MLFLOW_BACKEND_STORE_URI"] == URL
    assert "secret" not in " ".join(made.words())
    made.save()
    assert not (folder.mlflow / "mlflow.db").exists()
    (tmp_path / "url").unlink()
    with pytest.raises(UserError, match=r"mlflow\.url_file .* cannot be read"):
        made.prepare({})


@pytest.mark.parametrize(
    ("url", "mode", "said"),
    [
        (URL, 0o640, r"others may open .* \(mode 640\); call chmod 600"),
        ("secret", 0o600, "contains no database URL; valid: one line such as postgresql://"),
        ("secret://me@db/x", 0o600, "contains no database URL"),
    ],
)
def test_a_file_that_will_not_do_is_told_without_what_it_holds(
    folder: ClusterFolder, tmp_path: Path, url: str, mode: int, said: str
) -> None:
    with pytest.raises(UserError, match=said) as told:
        site_database(folder, tmp_path, url, mode).prepare({})
    assert "secret" not in str(told.value)


def test_a_missing_driver_is_named(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    with pytest.raises(
        MissingPartError, match=r"psycopg, is not .*`pip install 'raysuite\[postgres\]'`"
    ):
        site_database(folder, tmp_path, URL).prepare({})


def test_a_missing_password_is_told(folder: ClusterFolder, tmp_path: Path) -> None:
    folder.forget(Mlflow)
    with pytest.raises(UserError, match=r"mlflow\.json is missing"):
        server(folder, tmp_path / "a").prepare({})
