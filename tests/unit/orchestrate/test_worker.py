"""What a worker does before it works."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from raysuite.orchestrate import worker
from raysuite.orchestrate.failures import BrokenRunError
from raysuite.orchestrate.stopping import tell


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr(sys, "path", list(sys.path))
    return {"results": str(tmp_path / "results"), "path": str(tmp_path)}


def test_results_that_only_the_driver_has(
    here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_SHARED_S", 0.1)
    with pytest.raises(BrokenRunError) as raised:
        worker.settle(here)
    assert f"does not see the results folder {here['results']}" in raised.value.message
    assert "--results FOLDER on a file system that they share" in raised.value.message
    assert not raised.value.peer_lost
    assert not Path(here["results"]).exists()


def test_a_network_file_system_shows_them_a_little_later(here: dict[str, str]) -> None:
    results = Path(here["results"])
    results.mkdir()
    threading.Timer(1.0, tell, (results, None)).start()
    worker.settle(here)
    assert Path.cwd() == Path(here["path"])
    assert sys.path[0] == here["path"]
    assert os.listdir(results) == ["stop.json"]
