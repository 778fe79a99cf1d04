"""Sweeps: trials that end early or fail in every way, and drivers that are stopped and killed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from raysuite.records import (
    EpochFinished,
    Results,
    RunFailed,
    RunFinished,
    RunPruned,
    RunStarted,
    RunStopped,
)
from raysuite.records.sweep import best, trials
from tests.integration.workplace import (
    Command,
    Workplace,
    alive,
    has_checkpoint,
    name_of,
    until_ended,
)
from tests.marks import SLOW_MARKS
from tests.require import require
from tests.waiting import until

pytestmark = [*SLOW_MARKS, pytest.mark.timeout(1200)]

PATIENCE_S = 900

ENDS = """\
name: ends
model: {name: "own:Failing", options: {how: slow}}
data: digits
optimizer: {name: sgd, momentum: 0.9}
training: {epochs: 8, global_batch: 240}
resources: {device: cpu}
search:
  space:
    optimizer.lr: {grid: [0.1, 0.000001]}
    model.options.how: {grid: [""], when: {optimizer.lr: 0.1}}
  searcher: grid
  scheduler: {name: asha, grace_epochs: 1, reduction_factor: 3}
  side_by_side: 1
"""
"""One trial learns, one does not and is slow enough to be ended."""

FAILING = """\
name: failing
model: {name: "own:Failing"}
data: digits
training: {epochs: 2, global_batch: 240}
resources: {device: cpu}
search:
  space:
    model.options.how: {grid: [hangs, raises, out of memory, ""]}
  searcher: grid
  deadline_s: 90
"""

BROKEN_OFF = """\
name: broken-off
model: {name: "own:Failing", options: {how: slow}}
data: digits
training: {epochs: 4, global_batch: 240}
resources: {device: cpu}
search:
  trials: 3
  space: {optimizer.lr: {loguniform: [0.01, 0.1]}}
  side_by_side: 1
"""

FRAMEWORKS = """\
name: frameworks
model: {name: "own:Net"}
data: digits
training: {epochs: 1, global_batch: 240}
resources: {device: cpu}
search:
  space:
    strategy: {grid: [ddp, horovod, deepspeed]}
    loader: {grid: [native, dali]}
  searcher: grid
"""


def run_ids(results: Results) -> list[str]:
    found = [plan["run_id"] for plan in results.plans()]
    assert len(set(found)) == len(found)
    return found


def ends(results: Results) -> list[Any]:
    return [results.end_of(run_id) for run_id in run_ids(results)]


def records_of(results: Results, number: int, kind: type[Any]) -> list[Any]:
    records = results.records(run_ids(results)[number])
    return [record for record in records if isinstance(record, kind)]


def swept(workplace: Workplace, name: str, text: str) -> tuple[Command, Results]:
    workplace.write(f"{name}.yaml", text)
    command = workplace.start("raysuite", "sweep", f"{name}.yaml", "--no-mlflow", "--quiet")
    code = command.wait(PATIENCE_S)
    assert code == 0, command.stdout + command.stderr
    return command, workplace.results()


def test_the_best_trial_wins_and_asha_ends_a_poor_one(workplace):
    command, results = swept(workplace, "ends", ENDS)
    good, poor = ends(results)
    assert len(records_of(results, 0, RunStarted)) == 1
    assert isinstance(good, RunFinished)
    assert isinstance(poor, RunPruned)
    assert poor.by == "asha"
    assert poor.epoch < 7
    assert poor.value == records_of(results, 1, EpochFinished)[0].val_accuracy
    found = trials(results)
    assert [trial.status for trial in found] == ["finished", "pruned"]
    winner = best(found, "accuracy")
    assert winner is not None
    assert winner.number == 0
    assert winner.goals["accuracy"] > 0.8
    assert (results.folder / "best.yaml").is_file()
    assert command.stdout.split() == [str(results.folder)]
    assert "Traceback" not in command.stderr


@pytest.mark.thorough
def test_trials_that_fail_in_every_way_end_by_themselves_and_stop_no_other(workplace):
    _, results = swept(workplace, "failing", FAILING)
    hung, raised, full, well = ends(results)
    assert isinstance(well, RunFinished)
    assert [end.reason for end in (hung, raised, full)] == ["deadline", "error", "out_of_memory"]
    assert "ValueError: the sun went down" in raised.message
    assert "deadline_s" in hung.message
    for number in range(3):
        assert len(records_of(results, number, RunStarted)) == 1
        assert len(records_of(results, number, RunFailed)) == 1
        assert len(records_of(results, number, EpochFinished)) == 1
    assert [trial.counts for trial in trials(results)] == [False, False, False, True]


@pytest.mark.thorough
def test_a_sweep_that_is_stopped_ended_and_killed_makes_each_trial_once(workplace):
    workplace.write("broken-off.yaml", BROKEN_OFF)
    folder = workplace.folder / "results" / "broken-off"

    def begun(command: Command, number: int) -> bool:
        assert command.process.poll() is None, command.stderr
        if not list(folder.glob("*/plan.json")):
            return False
        results = Results.open(folder)
        return len(results.plans()) > number and bool(records_of(results, number, EpochFinished))

    def pace(seconds: int) -> None:
        workplace.write("pace.partial", str(seconds))
        (workplace.folder / "pace.partial").replace(workplace.folder / "pace")

    pace(3)  # there is a minute to stop a trial in
    command = workplace.start("raysuite", "sweep", "broken-off.yaml", "--no-mlflow", "--quiet")
    until(lambda: begun(command, 0), PATIENCE_S)
    command.process.send_signal(signal.SIGTERM)
    assert command.wait(PATIENCE_S) == 75, command.stdout + command.stderr
    assert "raysuite sweep --resume-from" in command.stderr
    results = Results.open(folder)
    assert len(records_of(results, 0, RunStopped)) == 1
    assert ends(results) == [None]

    # Ctrl-C: nothing is waited for, the last checkpoint counts
    words = ["raysuite", "sweep", "--resume-from", str(results.folder), "--quiet"]
    command = workplace.start(*words, "--no-mlflow")
    until(lambda: begun(command, 1) and has_checkpoint(results, run_ids(results)[1]), PATIENCE_S)
    family = command.family()
    command.process.send_signal(signal.SIGINT)
    assert command.wait(PATIENCE_S) == 130, command.stdout + command.stderr
    until_ended(family, 180)
    assert "finished work is kept; resume with: raysuite sweep --resume-from" in command.stderr
    assert "Traceback" not in command.stderr
    first = results.journal_file(run_ids(results)[0])
    finished = first.read_bytes()
    starts = records_of(results, 0, RunStarted)
    assert [each.first_step > 0 for each in starts] == [False, True]
    assert isinstance(ends(results)[0], RunFinished)
    assert ends(results)[1:] == [None]

    # a driver that is killed, after MLflow had heard of what ended
    command = workplace.start(*words)
    until(lambda: begun(command, 2), PATIENCE_S)
    pace(PATIENCE_S)  # it does not end before it is killed
    states = "select status, count(*) from runs group by status order by status"
    until(lambda: dict(workplace.query(states)).get("FINISHED", 0) >= 2, PATIENCE_S)
    assert workplace.query(states)[1][0] == "RUNNING", "the sweep itself"
    family = command.family()
    command.process.kill()
    command.wait(60)
    until(lambda: not [each for each in alive(family) if "RayTrainWorker" in name_of(each)], 120)
    starts = records_of(results, 1, RunStarted)
    assert [each.first_epoch > 0 for each in starts] == [False, True]
    assert [type(end) for end in ends(results)] == [RunFinished, RunFinished, type(None)]

    (workplace.folder / "pace").unlink()
    workplace.run(*words)
    assert [type(end) for end in ends(results)] == [RunFinished] * 3
    assert first.read_bytes() == finished
    assert len({str(trial.values) for trial in trials(results)}) == 3
    for number in range(3):
        assert len(records_of(results, number, RunFinished)) == 1
    assert workplace.query(states) == [("FINISHED", 1 + 3)]
    (best_spec,) = workplace.folder.glob("mlartifacts/broken-off/*/artifacts/best.yaml")
    assert best_spec.read_bytes() == (results.folder / "best.yaml").read_bytes()


@pytest.mark.thorough
def test_frameworks_and_loaders_are_dimensions_of_one_sweep(workplace):
    for part in ("horovod", "deepspeed", "dali"):
        require(part)
    _, results = swept(workplace, "frameworks", FRAMEWORKS)
    found = trials(results)
    assert [trial.status for trial in found] == ["finished"] * 6
    assert {(trial.values["strategy"], trial.values["loader"]) for trial in found} == {
        (strategy, loader)
        for strategy in ("ddp", "horovod", "deepspeed")
        for loader in ("native", "dali")
    }
    # the same work, whoever does it
    reached = [trial.goals["accuracy"] for trial in found]
    assert max(reached) - min(reached) < 0.05
