"""The example of docs/how-to/own-model.md, run as it stands there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.records import EpochFinished
from raysuite.spec import read_document
from raysuite.train.run import execute
from tests.pages import blocks, copied


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    code, spec = (blocks("own-model.md", kind)[0] for kind in ("python", "yaml"))
    with copied({"my_models.py": code, "my_experiment.yaml": spec}, tmp_path, monkeypatch):
        yield


def test_its_costs_are_those_on_the_page() -> None:
    command, *shown = blocks("own-model.md", "console")[0].splitlines()
    result = CliRunner().invoke(app, command.split()[2:])
    assert result.exit_code == 0, result.output
    printed = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert [line.split() for line in shown if line.strip()] == printed[: len(printed) - 2]


@pytest.mark.parametrize("width", [16, pytest.param(32, marks=pytest.mark.thorough)])
def test_it_learns_in_both_widths(width: int) -> None:
    plans = make_plans(read_document(Path("my_experiment.yaml")), gpus=0)
    assert [plan.spec.model.options for plan in plans] == [{"width": 16}, {"width": 32}]
    [plan] = [plan for plan in plans if plan.spec.model.options == {"width": width}]
    records = list(execute(plan, World(0, 1, 0, torch.device("cpu"))))
    epochs = [record for record in records if isinstance(record, EpochFinished)]
    assert len(epochs) == 4
    assert epochs[-1].val_accuracy > 0.5  # one in ten by chance
