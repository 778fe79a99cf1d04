"""The example of docs/how-to/sweeps.md, one's own model on one's own data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.parallel.base import World
from raysuite.plan.space import drawn
from raysuite.plan.trials import check_space, trial_plan
from raysuite.records import EpochFinished
from raysuite.spec import read_document
from raysuite.spec.search_check import read_search
from raysuite.train.run import execute
from tests.pages import blocks, copied


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    files = {
        "my_models.py": blocks("own-model.md", "python")[0],
        "my_data.py": blocks("own-data.md", "python")[0],
        "my_sweep.yaml": blocks("sweeps.md", "yaml")[-1],
    }
    with copied(files, tmp_path, monkeypatch):
        yield


def test_its_first_command_prints_the_trials() -> None:
    command, _ = blocks("sweeps.md", "console")[-1].splitlines()
    found = CliRunner().invoke(app, command.split()[2:])
    assert found.exit_code == 0, found.output
    assert "3 trials, by random, scheduler asha" in found.stdout


@pytest.mark.thorough
def test_its_trials_learn() -> None:
    document = read_document(Path("my_sweep.yaml"))
    search = read_search(document)
    check_space(document, search)
    reached = []
    for number, values in enumerate(drawn(search)):
        plan = trial_plan(document, values, number, gpus=0)
        assert plan.spec.model.options == {"width": values["model.options.width"]}
        records = list(execute(plan, World(0, 1, 0, torch.device("cpu"))))
        epochs = [record for record in records if isinstance(record, EpochFinished)]
        assert len(epochs) == 4
        reached.append(max(epoch.val_accuracy for epoch in epochs))
    assert max(reached) > 0.45  # one in three by chance


def test_the_section_at_the_head_of_the_page_is_one() -> None:
    base = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 9, global_batch: 64}\n"
    section = next(each for each in blocks("sweeps.md", "yaml") if each.startswith("search:"))
    Path("whole.yaml").write_text(base + section)
    document = read_document(Path("whole.yaml"))
    check_space(document, read_search(document))
