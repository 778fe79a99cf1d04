"""What is sent past a site's web proxy."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests.utils

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Head
from raysuite.cluster.variables import client_environment, past_proxies

DASHBOARD = "http://10.1.2.3:8265"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "10.1.2.3"),
        ({"NO_PROXY": "a.org"}, "a.org,10.1.2.3"),
        ({"no_proxy": "a.org, b.org"}, "a.org,b.org,10.1.2.3"),
        ({"NO_PROXY": "a.org", "no_proxy": "b.org,a.org"}, "a.org,b.org,10.1.2.3"),
        ({"NO_PROXY": "10.1.2.3"}, "10.1.2.3"),
        ({"no_proxy": "*"}, "*"),
        ({"NO_PROXY": ","}, "10.1.2.3"),
    ],
)
def test_what_was_there_stays(before: dict[str, str], after: str) -> None:
    found = past_proxies((DASHBOARD, "http://10.1.2.3:5000"), before)
    assert found == {"NO_PROXY": after, "no_proxy": after}
    assert past_proxies((DASHBOARD,), found) == found


def test_an_empty_url_adds_nothing() -> None:
    assert past_proxies(("",), {}) == {"NO_PROXY": "", "no_proxy": ""}


def test_a_shell_with_a_proxy_sends_nothing_of_a_cluster_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "a.org")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    head = Head(host="n", gcs="10.1.2.3:1", dashboard=DASHBOARD, mlflow="http://10.1.2.4:5000")
    assert requests.utils.get_environ_proxies(DASHBOARD)
    for name, value in client_environment(ClusterFolder(tmp_path), head).items():
        monkeypatch.setenv(name, value)
    assert not requests.utils.get_environ_proxies(DASHBOARD)
    assert not requests.utils.get_environ_proxies(head.mlflow)
    assert requests.utils.get_environ_proxies("http://elsewhere.org")
