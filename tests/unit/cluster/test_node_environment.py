"""The environment of Ray's processes on a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raysuite.cluster import binding
from raysuite.cluster.agent.node import node_variables
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Head
from raysuite.cluster.variables import RUN_SETTINGS, client_environment, with_site

SECRETS = (
    "RAY_AUTH_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """For a user who has secrets, and the address of another cluster, in her environment."""
    for name in SECRETS:
        monkeypatch.setenv(name, "hush-hush")
    monkeypatch.setenv("RAY_ADDRESS", "http://other:8265")
    return node_variables(ClusterFolder(tmp_path), "127.0.0.1", "", tmp_path, {})


def test_no_secret_is_inherited(found: dict[str, str], tmp_path: Path) -> None:
    assert not {*SECRETS, "RAY_ADDRESS"} & found.keys()
    assert "hush-hush" not in found.values()
    assert found["RAY_AUTH_TOKEN_PATH"] == str(ClusterFolder(tmp_path).token_file)


def test_trials_of_a_users_script_have_folders_of_their_own(found: dict[str, str]) -> None:
    assert "RAY_CHDIR_TO_TRIAL_DIR" not in found
    assert RUN_SETTINGS["RAY_CHDIR_TO_TRIAL_DIR"] == "0", "raysuite's own stay where they are"


def test_ports_that_ask_for_no_token_are_closed(found: dict[str, str]) -> None:
    assert found["RAY_enable_metrics_collection"] == "0"
    assert found["AUTOSCALER_METRIC_PORT"] == found["DASHBOARD_METRIC_PORT"] == "-1"
    assert found.items() >= binding.CLOSED.items()


def test_what_a_program_needs_to_use_the_cluster(
    found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found["TMPDIR"] == found["RAY_TMPDIR"] == str(tmp_path)
    assert found["RAYSUITE_INTERFACE"] == "lo"
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    folder = ClusterFolder(tmp_path)
    head = Head(host="n", gcs="10.0.0.1:6", dashboard="http://10.1.0.1:7", mlflow="")
    common = {
        "RAY_ADDRESS": "http://10.1.0.1:7",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
        "RAYSUITE_CLUSTER": str(tmp_path),
        "NO_PROXY": "10.1.0.1",
        "no_proxy": "10.1.0.1",
    }
    assert client_environment(folder, head) == common
    whole = {"mlflow": "http://10.1.0.2:8", "client": "ray://10.1.0.1:9", "gcs": "127.0.0.1:6"}
    assert client_environment(folder, head.model_copy(update=whole)) == {
        **common,
        "MLFLOW_TRACKING_URI": "http://10.1.0.2:8",
        "MLFLOW_TRACKING_AUTH": "raysuite",
        "RAYSUITE_RAY_CLIENT": "ray://10.1.0.1:9",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "NO_PROXY": "10.1.0.1,10.1.0.2",
        "no_proxy": "10.1.0.1,10.1.0.2",
    }


def test_a_sites_search_paths_come_before_those_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/image/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/.singularity.d/libs")
    site = {"PATH": "/site/bin", "LD_LIBRARY_PATH": "/site/lib", "PYTHONPATH": "/site/py"}
    for _ in range(2):  # the agent applies them to itself, and then to its children
        found = node_variables(ClusterFolder(tmp_path), "127.0.0.1", "", tmp_path, site)
        assert found["PATH"].split(":")[1:] == ["/site/bin", "/image/bin"]
        assert found["LD_LIBRARY_PATH"] == "/site/lib:/.singularity.d/libs"
        assert found["PYTHONPATH"] == "/site/py"
        for name, value in with_site(os.environ, site).items():
            monkeypatch.setenv(name, value)


def test_a_sites_path_is_put_before_one_that_only_begins_like_it() -> None:
    variables = {"PATH": "/opt/cuda-12/bin:/bin"}
    assert with_site(variables, {"PATH": "/opt/cuda"})["PATH"] == "/opt/cuda:/opt/cuda-12/bin:/bin"
    assert with_site(variables, {"PATH": "/opt/cuda-12/bin"}) == variables
