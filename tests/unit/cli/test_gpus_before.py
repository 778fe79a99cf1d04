"""GPUs are counted where the runs will be: here, or on the cluster that is joined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.errors import UserError
from raysuite.orchestrate import suite
from raysuite.orchestrate.cluster import Capacity, Node

SPEC = """\
name: on-gpus
model: resnet20
data: digits
strategy: ddp
training: {epochs: 1, global_batch: 64}
resources: {device: gpu, workers: 8}
"""
SEARCH = "search: {space: {optimizer.lr: {grid: [0.1, 0.2]}}, searcher: grid}\n"
SPECS = {"run": SPEC, "sweep": SPEC + SEARCH}
TOO_FEW = "on-gpus.yaml:6: resources.device: 8 workers need 8 GPUs; there are"
JOINED = ("--address", "10.0.0.1:6379")


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """To which addresses; the cluster there has 4 GPUs, or 8 of a name with an 8."""
    asked: list[str | None] = []

    @contextmanager
    def connect(address: str | None) -> Iterator[Capacity]:
        asked.append(address)
        yield Capacity((Node(32, 4 if address and "8" in address else 2),) * 2)

    def check(*given: object) -> None:
        raise UserError("there is room")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(suite, "connect", connect)
    monkeypatch.setattr(suite, "check", check)
    monkeypatch.setattr("raysuite.cli.driver.create_sweep", check)
    return asked


def invoke(verb: str, *words: str) -> Result:
    Path("on-gpus.yaml").write_text(SPECS[verb], "utf-8")
    return CliRunner().invoke(app, [verb, "on-gpus.yaml", *words])


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_cluster_is_asked_for_its_gpus(verb: str, connected: list[str | None]) -> None:
    few = invoke(verb, "--no-mlflow", *JOINED)
    assert (few.exit_code, connected) == (2, [JOINED[1]])
    assert f"{TOO_FEW} 4" in few.stderr
    enough = invoke(verb, "--no-mlflow", "--address", "10.0.0.8:6379")
    assert (enough.exit_code, enough.stderr) == (2, "error: there is room\n")
    assert not Path("results").exists()


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_this_machine_is_known_before(verb: str, connected: list[str | None]) -> None:
    refused = invoke(verb, "--no-mlflow")
    assert (refused.exit_code, connected) == (2, [])
    assert f"{TOO_FEW} 0" in refused.stderr


def test_a_dry_run_of_a_sweep_asks_no_cluster(connected: list[str | None]) -> None:
    assert f"{TOO_FEW} 0" in invoke("sweep", "--dry-run").stderr
    foreseen = invoke("sweep", "--dry-run", *JOINED)
    assert foreseen.exit_code == 0, foreseen.stderr
    assert "2 trials" in foreseen.stdout
    assert connected == []
