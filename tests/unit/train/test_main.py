"""`python -m raysuite.train`: in one process and under torchrun, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import EpochFinished, Results, RunFinished
from raysuite.train.__main__ import main
from tests.torchrun import torchrun

SPEC = """
name: plain
model: tests.tiny_model:Tiny
data: digits
training: {epochs: 2, global_batch: 240, clip_norm: 1.0}
resources: {device: cpu}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return file


def losses(folder: Path) -> list[float]:
    results = Results.open(folder)
    (plan,) = results.plans()
    assert isinstance(results.end_of(plan["run_id"]), RunFinished)
    records = results.records(plan["run_id"])
    return [x for record in records if isinstance(record, EpochFinished) for x in record.losses]


@pytest.mark.integration
def test_a_rank_more_changes_no_loss(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(spec), "--results", str(tmp_path / "one")]) == 0
    assert "epoch 2/2" in capsys.readouterr().out
    ddp = ("strategy=ddp", "resources.workers=2", "--results", tmp_path / "two")
    said = torchrun(2, "raysuite.train", spec, *ddp)
    assert said.count("epoch 2/2") == 1  # rank 0 speaks for all
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 12
    assert two == pytest.approx(one, rel=1e-5)


def test_another_number_of_processes(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(spec), "resources.workers=2", "strategy=ddp"]) == 2
    said = capsys.readouterr().err
    assert "started with 1 processes, and the runs have [2] workers" in said
    assert "torchrun --nproc-per-node N" in said


def test_a_mistake_in_the_spec(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(spec), "strategy=dpd"]) == 2
    assert "did you mean 'ddp'" in capsys.readouterr().err
