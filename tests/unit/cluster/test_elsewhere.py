"""A local cluster that runs on another host, which shares the folder with this one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cluster.client import down, start, status_of
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.local import LocalBackend, this_host
from raysuite.cluster.state_files import Head, Node
from raysuite.errors import UserError
from tests.living import living

CLI = CliRunner()
THERE = living().model_copy(update={"host": "login1", "job": "1"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    folder = prepare(THERE)
    folder.write(Node(host="login1", state="joined", incarnation="pid-1"))
    folder.write(Head(host="login1", gcs="127.0.0.1:1", dashboard="http://127.0.0.1:2", mlflow=""))
    return folder


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a backend starts ends with the test."""
    started = []
    popen = subprocess.Popen

    def kept(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    yield
    for process in started:
        process.kill()
        process.wait()


def test_nobody_here_can_tell_whether_it_lives(folder: ClusterFolder) -> None:
    status = status_of(folder)
    assert (status.state, status.why, status.lives) == ("unknown", "it runs on login1", True)


@pytest.mark.usefixtures("agents")
def test_an_agent_says_where_it_runs(folder: ClusterFolder) -> None:
    backend = LocalBackend()
    started = backend.start(folder, living(), ("sleep", "600"))
    assert started.host == this_host()
    backend.kill(started.model_copy(update={"host": "login1"}))  # kills nobody
    assert backend.states([started])[0].phase == "running"


def test_it_is_left_alone_from_here(folder: ClusterFolder) -> None:
    before = sorted(folder.path.rglob("*"))
    with pytest.raises(UserError, match="'mine' runs on login1"):
        down(folder, 0.0)
    with pytest.raises(UserError, match="'mine' runs on login1"):
        start(living(), ("sleep", "600"))
    done = CLI.invoke(app, ["cluster", "status", "--env", "mine"])
    assert (done.exit_code, "runs on login1" in done.output) == (2, True)
    assert sorted(folder.path.rglob("*")) == before
    assert folder.cluster() == THERE


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("by", ["its agent", "a mark"])
def test_one_that_has_said_its_end_is_in_nobodys_way(folder: ClusterFolder, by: str) -> None:
    if by == "its agent":
        folder.write(Node(host="login1", state="failed", message="no ports", incarnation=""))
        folder.forget(Head)
    else:
        folder.over.touch()
    assert not status_of(folder).lives
    assert down(folder, 0.0) == []
    assert not status_of(folder).lives
    folder = start(living(), ("sleep", "600"))
    assert folder.cluster().host == this_host()
    assert 0 <= folder.timings()["submit"] < 60


def test_one_that_was_taken_down_there_has_ended_for_all(folder: ClusterFolder) -> None:
    folder.write(living().model_copy(update={"birth": "another", "host": this_host()}))
    assert status_of(folder).state == "stale"
    assert down(folder, 0.0) == []
    folder.write(THERE)  # as another host sees it
    assert (status_of(folder).state, status_of(folder).why) == ("ended", "taken down")


def test_down_all_takes_the_others_down(folder: ClusterFolder) -> None:
    gone = living("gone").model_copy(update={"birth": "another"})
    other = prepare(gone)
    done = CLI.invoke(app, ["cluster", "down", "--all"])
    assert done.exit_code == 1
    assert "gone is down" in done.output
    assert "'mine' runs on login1" in done.output
    assert status_of(other).state == "ended"
    assert folder.token_file.exists()
