"""A sweep of one's own model on one's own data set, by the words of docs/how-to/sweeps.md."""

from __future__ import annotations

import json

import pytest

from raysuite.records.sweep import best, trials
from tests.integration.workplace import Workplace
from tests.marks import SLOW_MARKS
from tests.pages import blocks

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(900)]

LEARNT = 0.45
"""A third by chance."""


def test_the_example_of_the_page(workplace: Workplace) -> None:
    """Beside each other on two cores, all of them on record, and the best one ready to be run."""
    workplace.write("my_models.py", blocks("own-model.md", "python")[0])
    workplace.write("my_data.py", blocks("own-data.md", "python")[0])
    workplace.write("my_sweep.yaml", blocks("sweeps.md", "yaml")[-1])
    commands = [line[2:].split() for line in blocks("sweeps.md", "console")[-1].splitlines()]
    dry, real = (workplace.run(*words).stdout for words in commands)
    assert "3 trials, by random, scheduler asha" in dry
    results = workplace.results()
    found, search = trials(results), results.search()
    assert search is not None
    assert len(found) == len({trial.run_id for trial in found}) == 3
    assert {trial.status for trial in found} <= {"finished", "pruned"}
    assert all(set(trial.values) == set(search["search"]["space"]) for trial in found)
    winner = best(found, "accuracy")
    assert winner is not None
    assert (winner.goals["accuracy"] or 0) > LEARNT
    for trial in found:
        width = trial.values["model.options.width"]
        assert trial.figures.plan["spec"]["model"] == {
            "name": "my_models:TinyNet",
            "options": {"width": width},
        }
        assert f"trial {trial.number}  width {width} · lr " in real
    assert "Best trials" in real
    assert f"raysuite run {results.folder / 'best.yaml'}" in real
    plan = workplace.run("raysuite", "plan", str(results.folder / "best.yaml"), "--json")
    (again,) = json.loads(plan.stdout)
    assert again["spec"]["model"]["options"]["width"] == winner.values["model.options.width"]
    assert again["peak_lr"] == winner.values["optimizer.lr"]
