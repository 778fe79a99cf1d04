"""Which cluster a job is for, how its end is told, and what the command line refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cli.job import _chosen, ending
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.process import birth_of
from raysuite.cluster.state_files import Cluster, Head
from raysuite.errors import UserError
from raysuite.orchestrate.jobs import Job
from raysuite.spec.site import LocalSite


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    monkeypatch.delenv("RAYSUITE_CLUSTER", raising=False)
    return tmp_path


def _cluster(name: str, up: bool = True) -> ClusterFolder:
    """A local cluster whose agent is this process."""
    asked = Cluster(
        name=name,
        site=LocalSite(name="local"),
        nodes=1,
        created=1.0,
        working_folder="/",
        job=str(os.getpid()) if up else "",
        birth=birth_of(os.getpid()),
    )
    folder = prepare(asked)
    if up:  # port 1 answers nowhere
        folder.write(Head(host="n0", gcs="", dashboard="http://127.0.0.1:1", mlflow=""))
    return folder


def _refused(*words: str) -> str:
    done = CliRunner().invoke(app, ["job", *words])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.stderr


def test_the_only_cluster_that_is_up_is_meant() -> None:
    _cluster("down", up=False)
    only = _cluster("only")
    assert _chosen(None).path == only.path


def test_a_job_means_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    own = _cluster("own")
    _cluster("other")
    monkeypatch.setenv("RAYSUITE_CLUSTER", str(own.path))
    assert _chosen(None).path == own.path
    assert _chosen("other").name == "other"


def test_which_of_several_must_be_said() -> None:
    assert "no cluster" in _refused("logs")
    _cluster("one")
    _cluster("two")
    assert "2 clusters" in _refused("logs")
    with pytest.raises(UserError, match="three"):
        _chosen("three")


def test_a_cluster_that_does_not_answer_is_told() -> None:
    _cluster("dead")
    said = _refused("submit", "--", "true")
    assert "http://127.0.0.1:1 does not answer" in said
    assert "raysuite cluster status" in said


def test_a_cluster_without_a_head_is_told() -> None:
    _cluster("early", up=False)
    assert "its head" in _refused("logs", "--cluster", "early")


def test_a_token_that_is_missing_is_told() -> None:
    _cluster("bare").token_file.unlink()
    assert "token" in _refused("logs")


@pytest.mark.parametrize(
    ("status", "code", "told", "exit_code"),
    [
        ("SUCCEEDED", 0, "succeeded", 0),
        ("FAILED", 2, "failed: exit code 2", 2),
        ("FAILED", 75, "was stopped and can continue later: exit code 75", 75),
        ("FAILED", -9, "failed: exit code -9", 1),
        ("FAILED", None, "failed: no node took it", 1),
        ("STOPPED", None, "was cancelled", 1),
        ("RUNNING", None, "is running", 1),
    ],
)
def test_how_a_job_ended(status: str, code: int | None, told: str, exit_code: int) -> None:
    job = Job("a", status, "true", message="no node took it", exit_code=code)
    assert ending(job) == f"job a {told}"
    assert job.code == exit_code
