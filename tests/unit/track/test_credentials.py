"""The password goes to the cluster's own MLflow server, and nowhere else."""

from __future__ import annotations

import base64
import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from requests import Request

from raysuite.track.credentials import ClusterCredentials

SERVER = "http://10.0.0.1:20105"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "head.json").write_text(json.dumps({"mlflow": SERVER}), "utf-8")
    user = {"username": "raysuite", "password": "not a real one: é"}
    (tmp_path / "mlflow.json").write_text(json.dumps(user), "utf-8")
    monkeypatch.setenv("RAYSUITE_CLUSTER", str(tmp_path))
    return tmp_path


def _signed(url: str) -> bool:
    request = Request("GET", url, auth=ClusterCredentials().get_auth()).prepare()
    return "Authorization" in request.headers


@pytest.mark.parametrize("path", ["", "/", "/api/2.0/mlflow/runs/search?a=b"])
def test_the_clusters_server_is_told(cluster: Path, path: str) -> None:
    assert _signed(SERVER + path)


def test_it_gets_user_and_password_in_this_order(cluster: Path) -> None:
    request = Request("GET", SERVER, auth=ClusterCredentials().get_auth()).prepare()
    kind, sent = request.headers["Authorization"].split()
    assert (kind, base64.b64decode(sent).decode("latin1")) == (
        "Basic",
        "raysuite:not a real one: é",
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:20106/",
        "http://10.0.0.2:20105/",
        "https://10.0.0.1:20105/",
        "http://10.0.0.1:20105@example.org/",
        "http://example.org/10.0.0.1:20105",
    ],
)
def test_others_are_not(cluster: Path, url: str) -> None:
    assert not _signed(url)


def test_a_head_that_moved_is_followed(cluster: Path) -> None:
    (cluster / "head.json").write_text(json.dumps({"mlflow": "http://10.0.0.7:1"}), "utf-8")
    assert _signed("http://10.0.0.7:1/")
    assert not _signed(SERVER)


@pytest.mark.parametrize("name", ["head.json", "mlflow.json"])
def test_without_the_files_nothing_is_signed(cluster: Path, name: str) -> None:
    (cluster / name).unlink()
    assert not _signed(SERVER)


def test_without_a_cluster_nothing_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYSUITE_CLUSTER", raising=False)
    assert not _signed(SERVER)


def test_mlflow_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="mlflow.request_auth_provider", name="raysuite")
    assert found.load() is ClusterCredentials
    assert ClusterCredentials().get_name() == "raysuite"
