"""A population on this machine: weights are truly taken, also by way of a driver that is killed."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.records import EpochFinished, Results, RunFinished, RunJudged, RunStarted, RunStopped
from raysuite.records.judged import held_after
from raysuite.records.sweep import TrialFigures, trials
from tests.integration.workplace import Workplace, alive, name_of
from tests.marks import SLOW_MARKS
from tests.waiting import until

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(1200)]

PATIENCE_S = 900

POPULATION = """\
name: population
model: "own:Net"
data: digits
optimizer: {name: sgd, momentum: 0.9}
training: {epochs: 4, global_batch: 240}
resources: {device: cpu}
search:
  space:
    optimizer.lr: {grid: [0.1, 0.05, 0.000002, 0.000001]}
  searcher: grid
  scheduler: {name: pbt, interval_epochs: 2, resample: 0}
"""
"""All have the seed of the spec, and so the same order of samples."""


def of(results: Results, trial: TrialFigures, kind: type[Any]) -> list[Any]:
    return [record for record in results.records(trial.run_id) if isinstance(record, kind)]


def epoch(results: Results, trial: TrialFigures, number: int) -> EpochFinished:
    (found,) = [each for each in of(results, trial, EpochFinished) if each.epoch == number]
    return found


def test_the_worst_goes_on_from_the_best_ones_weights_after_a_kill_too(workplace: Workplace):
    workplace.write("population.yaml", POPULATION)
    words = ["raysuite", "sweep", "population.yaml", "--no-mlflow", "--quiet"]
    command = workplace.start(*words)
    folder = workplace.folder / "results" / "population"

    def waiting() -> int:
        assert command.process.poll() is None, command.stdout + command.stderr
        if not list(folder.glob("*/plan.json")):
            return 0
        results = Results.open(folder)
        runs = [results.records(plan["run_id"]) for plan in results.plans()]
        return sum(held_after(run) == 2 for run in runs)

    # two trials wait for the others
    until(lambda: waiting() >= 2, PATIENCE_S)
    family = command.family()
    command.process.kill()
    command.wait(60)
    until(lambda: not [each for each in alive(family) if "RayTrainWorker" in name_of(each)], 120)
    command = workplace.start(*words, "--resume")
    assert command.wait(PATIENCE_S) == 0, command.stdout + command.stderr

    results = Results.open(folder)
    found = trials(results)
    assert [trial.status for trial in found] == ["finished"] * 4
    taken = [(trial, turn) for trial in found for turn in trial.taken]
    assert [len(of(results, trial, RunJudged)) for trial in found] == [1] * 4
    ((trial, turn),) = taken
    assert trial.number in (2, 3)
    assert turn.place == turn.population == 4
    source = next(each for each in found if each.run_id == turn.source)
    assert source.number in (0, 1)

    # the same samples in the same order, by the same weights: the same loss, until the first update
    own, others = epoch(results, trial, 2), epoch(results, source, 2)
    before = epoch(results, trial, 1)
    assert own.losses[0] == pytest.approx(others.losses[0], rel=1e-6)
    assert own.losses[0] < 0.6 * before.losses[-1]
    assert own.val_accuracy > epoch(results, source, 1).val_accuracy - 0.1
    assert own.val_accuracy > before.val_accuracy + 0.3

    # at a rate beside the source's, not at its own, nor at the source's
    grid = [0.1, 0.05, 0.000002, 0.000001]
    place = grid.index(source.values["optimizer.lr"])
    rate = trial.values_now["optimizer.lr"]
    assert rate in [grid[near] for near in (place - 1, place + 1) if 0 <= near < 4]
    assert rate != trial.values["optimizer.lr"]
    assert own.learning_rates == [rate] * 6
    starts = of(results, trial, RunStarted)
    assert [start.plan["spec"]["optimizer"]["lr"] for start in starts][-1] == rate
    assert starts[-1].first_epoch == 2

    for each in found:
        assert [record.epoch for record in each.figures.epochs] == [0, 1, 2, 3]
        assert len(of(results, each, RunFinished)) == 1
        assert [stop.reason for stop in of(results, each, RunStopped)] == ["interval"]
    page = (results.folder / "report.html").read_text()
    assert f"takes the weights of trial {source.number}" in page
