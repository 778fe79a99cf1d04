"""The example of docs/how-to/own-model.md, run as it stands there."""

from __future__ import annotations

import importlib
import re
import sys
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

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "own-model.md").read_text("utf-8")


def block(language: str) -> str:
    """The first block of code in that language."""
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    assert found is not None, f"no block of {language}"
    return found.group(1)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_models.py").write_text(block("python"))
    (tmp_path / "my_experiment.yaml").write_text(block("yaml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path / "cache"))
    importlib.invalidate_caches()
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    sys.modules.pop("my_models", None)


def test_its_costs_are_those_on_the_page() -> None:
    command, *shown = block("console").splitlines()
    result = CliRunner().invoke(app, command.split()[2:])
    assert result.exit_code == 0, result.output
    printed = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert [line.split() for line in shown if line.strip()] == printed[: len(printed) - 2]


def test_it_learns_in_both_widths() -> None:
    plans = make_plans(read_document(Path("my_experiment.yaml")), gpus=0)
    assert [plan.spec.model.options for plan in plans] == [{"width": 16}, {"width": 32}]
    for plan in plans:
        records = list(execute(plan, World(0, 1, 0, torch.device("cpu"))))
        epochs = [record for record in records if isinstance(record, EpochFinished)]
        assert len(epochs) == 4
        assert epochs[-1].val_accuracy > 0.5  # one in ten by chance
