"""What is fetched of a cluster behind a login node, which is a shell here, and a host without
ssh."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from raysuite.cluster import forward
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.forward import Connection, connected
from raysuite.cluster.state_files import Cluster, Head
from raysuite.errors import UserError
from raysuite.spec.site import LocalSite


def test_a_host_without_ssh_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the program ssh"), connected("login"):
        pass


class Shell(Connection):
    """A login node whose shell prints a line first; it refuses the first `refused` forwards."""

    def __init__(self, home: Path, refused: int = 0) -> None:
        self.login, self._home, self._refused = "login", home, refused
        self.asked: list[dict[int, str]] = []

    def run(self, script: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["sh", "-s"],
            input=b"echo welcome\n" + script.encode(),
            capture_output=True,
            check=False,
            env={**os.environ, "RAYSUITE_HOME": str(self._home)},
        )

    def forward(self, ends: Mapping[int, str]) -> None:
        self.asked.append(dict(ends))
        if len(self.asked) <= self._refused:
            raise UserError("the port is in use")


def up(name: str, is_up: bool = True) -> ClusterFolder:
    site = LocalSite(name="local")
    folder = prepare(Cluster(name=name, site=site, nodes=1, created=1.0, working_folder="/"))
    if is_up:
        folder.write(HEAD)
    return folder


HEAD = Head(host="a", gcs="a:1", dashboard="http://a:2", mlflow="http://a:3")


def test_files_of_the_only_cluster_or_of_the_named_one_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    shell = Shell(tmp_path)
    with pytest.raises(UserError, match=r"`ssh login`: no cluster there$"):
        forward._fetched(shell, None)
    up("ended", is_up=False)
    with pytest.raises(UserError, match=r"no cluster is up there$"):
        forward._fetched(shell, None)
    one = up("one")
    files = {name: (one.path / name).read_text("utf-8") for name in forward.FETCHED}
    assert forward._fetched(shell, None) == ("one", files)
    other = up("two")
    with pytest.raises(UserError, match=r"several clusters there: .*; name one by --cluster$"):
        forward._fetched(shell, None)
    name, files = forward._fetched(shell, "two")
    assert (name, files["token"]) == ("two", other.token())
    with pytest.raises(UserError, match=r"not up there; there are: ended one two$"):
        forward._fetched(shell, "ended")
    monkeypatch.setattr(Shell, "run", lambda *_: subprocess.CompletedProcess([], 0, b"hello", b""))
    with pytest.raises(UserError, match="succeeded but returned no cluster"):
        forward._fetched(shell, None)


@pytest.mark.parametrize("refused", [0, 2, 3])
def test_ports_are_forwarded_by_the_third_attempt(tmp_path: Path, refused: int) -> None:
    shell = Shell(tmp_path, refused)
    if refused == 3:
        with pytest.raises(UserError, match="in use"):
            forward._near(shell, HEAD)
        return
    near = forward._near(shell, HEAD)
    assert len(shell.asked) == refused + 1
    (dashboard, first), (mlflow, second) = shell.asked[-1].items()
    assert (first, second) == ("a:2", "a:3")
    assert (near.dashboard, near.mlflow) == tuple(
        f"http://127.0.0.1:{port}" for port in (dashboard, mlflow)
    )
    assert (near.gcs, near.host) == ("", "a")


def test_a_server_that_is_not_there_is_not_forwarded(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert forward._near(shell, HEAD.model_copy(update={"mlflow": ""})).mlflow == ""
    assert [*shell.asked[0].values()] == ["a:2"]


def test_the_last_line_that_was_printed() -> None:
    assert forward.last_line(b" one\n\xfftwo \n\n") == "\ufffdtwo"
    assert forward.last_line(b"\n") == "it printed nothing"
