"""Training does not wait for an MLflow server that its cluster is still starting."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.cluster.state_files import Head
from raysuite.orchestrate.tracking import Tracking
from raysuite.records import Results


def test_a_server_that_starts_slowly_is_waited_for_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSUITE_CLUSTER", str(tmp_path))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    uri = "http://127.0.0.1:9"  # nobody answers, which ends the preparation too
    starting = Head(host="n", gcs="10.0.0.1:1", dashboard="", mlflow=uri, mlflow_answers=False)
    (tmp_path / "head.json").write_text(starting.model_dump_json(), "utf-8")
    shown: list[str] = []

    def show(text: str, *, error: bool = False) -> None:
        shown.append(text)

    now = 0.0
    tracking = Tracking(uri, show, clock=lambda: now, patience_s=0.05)
    assert not tracking.ready()
    now = 1e6
    tracking.follow(Results(tmp_path / "results"))
    assert tracking.sync(Results(tmp_path / "results")) == ""
    tracking.register(Results(tmp_path / "results"), silent=False)
    assert len(shown) == 1
    assert "raysuite sync" in shown[0]
    (tmp_path / "head.json").unlink()
    patient = Tracking(uri, show)
    assert patient.ready()
