"""Which network of a sweep is registered, and what is said where there is none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from raysuite import models
from raysuite.cli import app
from raysuite.errors import UserError
from raysuite.orchestrate import registration
from raysuite.orchestrate.registration import (
    best_run,
    chosen_run,
    network_of,
    only_run,
    trained,
)
from raysuite.records import EpochFinished, Journal, Results, results_figures
from raysuite.records.sweep import trials
from raysuite.spec.tasks import MetricFacts, TaskFacts
from raysuite.track.model_registry import Registration, weights_of
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_sweeps import write_sweep
from tests.unit.train.conftest import plan_of


def kept(results: Results) -> Results:
    """The results, with weights of every run."""
    for plan in results.plans():
        weights_of(results, plan["run_id"]).touch()
    return results


def test_the_best_of_a_study_is_marked_and_taken(tmp_path: Path) -> None:
    results = kept(write_results(tmp_path))
    finals = {run.run_id: run.final["accuracy"] for run in results_figures(results)}
    wanted = max(finals, key=lambda run_id: finals[run_id])
    assert best_run(results) == (wanted, "")
    assert chosen_run(results, None, best=True) == (wanted, "")
    other = min(finals, key=lambda run_id: finals[run_id])
    assert chosen_run(results, other, best=False) == (other, "")
    with pytest.raises(UserError) as raised:
        only_run(results)
    (marked,) = [line for line in str(raised.value).splitlines() if "(best)" in line]
    assert wanted in marked
    with pytest.raises(UserError, match="give one of them"):
        chosen_run(results, other, best=True)


def test_a_run_whose_metric_is_not_a_number_is_not_the_best(tmp_path: Path) -> None:
    results = kept(write_results(tmp_path))
    first, *others = results_figures(results)
    *_, last = (r for r in results.records(first.run_id) if isinstance(r, EpochFinished))
    journal = Journal(results.journal_file(first.run_id))
    assert first.end is not None
    for record in (last.model_copy(update={"val_accuracy": math.nan}), first.end):
        journal.write(record)
    best = max(others, key=lambda run: run.final["accuracy"])
    assert best_run(results) == (best.run_id, "")


def test_the_only_run_with_weights_is_taken_without_an_option(tmp_path: Path) -> None:
    results = write_results(tmp_path)
    with pytest.raises(UserError, match="kept its weights: they are written"):
        only_run(results)
    run_id = results.plans()[3]["run_id"]
    weights_of(results, run_id).touch()
    assert chosen_run(results, None, best=False) == (run_id, "")
    assert best_run(results) == (run_id, "")
    assert trained(results, run_id)[1] == weights_of(results, run_id)
    with pytest.raises(UserError, match="has no run 'x'; it has "):
        trained(results, "x")
    with pytest.raises(UserError, match="kept no trained weights"):
        trained(results, results.plans()[0]["run_id"])


def test_the_best_trial_with_weights_is_taken_and_the_better_one_without_is_named(
    tmp_path: Path,
) -> None:
    results = write_sweep(tmp_path, trials=6, scheduler="none")
    first, second, *_ = sorted(trials(results), key=lambda each: -(each.goals["accuracy"] or 0))
    for plan in results.plans():
        if plan["run_id"] != first.run_id:
            weights_of(results, plan["run_id"]).touch()
    run_id, note = best_run(results)
    assert run_id == second.run_id
    assert note.startswith(f"trial {first.number}, the best, was ended early and kept no weights;")
    assert f"trial {second.number} is the best" in note
    weights_of(results, first.run_id).touch()
    assert best_run(results) == (first.run_id, "")


@pytest.mark.parametrize(
    ("values", "higher", "best"),
    [
        ([0.2, 0.9, 0.9], True, 1),
        ([0.2, 0.1, 0.1], False, 1),
        ([math.nan, 0.9], False, 1),
        ([math.nan], True, None),
    ],
)
def test_the_best_run_is_the_first_with_the_best_value_of_its_metric(
    values: list[float], higher: bool, best: int | None
) -> None:
    def run(value: float, task: str = "t", classes: int = 2) -> Any:
        metric = MetricFacts(name="m", title="M", note="", higher_is_better=higher)
        facts = TaskFacts(name=task, unit="samples", metrics=(metric,), primary="m")
        plan = {"spec": {"data": {"name": "d"}}, "dataset": {"classes": classes}}
        return SimpleNamespace(task=facts, plan=plan, final={"m": value})

    runs = [run(value) for value in values]
    assert registration._best(runs) is (None if best is None else runs[best])
    for other in (run(0.5, task="u"), run(0.5, classes=3)):
        assert registration._best([*runs, other]) is None


@pytest.mark.parametrize(("error", "code"), [("", 0), ("refused", 1)])
def test_a_model_that_was_not_registered_has_no_uri(
    error: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(write_results(tmp_path))
    end = Registration("sqlite:///x.db", "a run", "net", "3", error=error)
    monkeypatch.setattr("raysuite.orchestrate.registration.register_run", lambda *_: end)
    told, shown = (
        CliRunner().invoke(app, ["register", str(tmp_path), "--best", *words])
        for words in (["--json"], [])
    )
    assert told.exit_code == shown.exit_code == code
    assert json.loads(told.stdout)["uri"] == (None if error else "models:/net/3")
    assert (shown.stderr if error else shown.stdout) == f"{end}\n"


def test_accuracies_on_different_data_have_no_best(tmp_path: Path) -> None:
    spec = TWELVE_ROWS.replace("data: digits\n", "").replace(
        "  loader: [native, dali]", "  data: [digits, cifar10]"
    )
    results = kept(write_results(tmp_path, spec, elsewhere=True))
    with pytest.raises(UserError, match="different tasks or data sets"):
        best_run(results)
    with pytest.raises(UserError) as raised:
        only_run(results)
    assert "(best)" not in str(raised.value)


TOO_SLOW = {"optimizer.lr": {"grid": [0.0001, 0.0002]}}


def test_a_sweep_without_weights(tmp_path: Path) -> None:
    results = write_sweep(tmp_path, trials=2, scheduler="none")
    with pytest.raises(UserError, match=r"kept its weights"):
        best_run(results)


def test_a_goal_that_no_trial_reached(tmp_path: Path) -> None:
    goals = ("time_to_accuracy",)
    results = write_sweep(tmp_path, trials=2, scheduler="none", space=TOO_SLOW, goals=goals)
    for plan in results.plans():
        weights_of(results, plan["run_id"]).touch()
    first = results.plans()[0]["run_id"]
    told = f"that kept its weights has a value of time_to_accuracy; .* --run {first}"
    with pytest.raises(UserError, match=told):
        best_run(results)


def test_the_input_of_a_network_with_a_transform_is_what_the_transform_returns(
    tmp_path: Path,
) -> None:
    plan = plan_of(data_transform="my_transforms:cutout")
    weights = tmp_path / "model.pt"
    torch.save(models.build(plan.spec.model, plan.dataset).state_dict(), weights)
    assert network_of(plan, weights).takes == (
        "pixels, 0 to 255, as my_transforms:cutout returns them"
    )
