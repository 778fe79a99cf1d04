"""`raysuite ui`: stores that cannot be used, and the end of its server."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app, ui
from raysuite.cluster import mlflow_server


@pytest.mark.parametrize("store", ["sqlite:///bad.db", "sqlite:////nowhere/mlflow.db", "ftp://x/y"])
def test_a_store_that_cannot_be_used_is_named(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    Path("bad.db").write_text("not a database")
    done = CliRunner().invoke(app, ["ui"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"MLflow's store {store} cannot be used: " in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_to_the_command_alone_ends_the_server_and_removes_its_folder(
    number: signal.Signals, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def answers(_url: str, server: int) -> bool:
        started.append(server)
        assert [*tmp_path.glob("rs-ui-*")]
        signal.raise_signal(number)
        return False

    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ui, "prepare_store", lambda _: None)
    monkeypatch.setattr(ui, "runs_page", lambda _: "#")
    monkeypatch.setattr(mlflow_server, "words", lambda *_: sleeping)
    monkeypatch.setattr(mlflow_server, "answers", answers)
    assert CliRunner().invoke(app, ["ui"]).exit_code == code
    (server,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert not [*tmp_path.glob("rs-ui-*")]
