"""A sweep's trials, from made-up journals through the real Journal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.cli.progress import RunState, event
from raysuite.orchestrate.suite import reset_failures
from raysuite.plan import RunPlan, make_plans
from raysuite.records import (
    FailReason,
    Journal,
    Record,
    Results,
    RunFailed,
    RunPruned,
    make_rows,
    results_figures,
    run_figures,
)
from raysuite.records.sweep import (
    Goal,
    TrialFigures,
    at_work,
    best,
    pareto,
    ranked,
    trial_figures,
    trials,
    wall_seconds,
    wanted_goals,
)
from raysuite.report import build
from raysuite.spec import parse_document
from raysuite.spec.search import goals_of
from raysuite.spec.tasks import CLASSIFICATION
from raysuite.track.entries import mlflow_status, run_tags
from tests.fake_batches import batch_found
from tests.fake_results import epoch, run_records, verdict, write_results
from tests.fake_sweeps import write_sweep
from tests.oracle import differences

SPEC = """\
name: made-up
model: resnet20
data: digits
training: {epochs: 6, global_batch: 64, target_accuracy: 0.9}
resources: {device: cpu}
matrix: {optimizer.lr: [0.1, 0.2, 0.3, 0.4]}
"""
PLANS = make_plans(parse_document(SPEC, "spec.yaml"), gpus=0)
PLAN = PLANS[0]
DATA = PLAN.model_dump(mode="json")


def pruned(plan: RunPlan = PLAN, last: int = 1, **changed: Any) -> RunPruned:
    facts = {"by": "asha", "epoch": last, "value": 0.5, "time": 1_700_000_090.0}
    return RunPruned(run_id=plan.run_id, **(facts | changed))


def ended_early(plan: RunPlan, accuracies: list[float]) -> list[Record]:
    start = run_records(plan)[0]
    epochs = [
        epoch(plan, n, start.time, accuracy=accuracy) for n, accuracy in enumerate(accuracies)
    ]
    return [start, verdict(plan), *epochs, pruned(plan, len(accuracies) - 1, time=start.time + 90)]


def test_a_pruned_run_has_ended_and_its_figures_count_for_the_sweep(tmp_path: Path) -> None:
    records = ended_early(PLAN, [0.4, 0.5])
    found = run_figures(DATA, records)
    assert (found.status, found.end) == ("pruned", records[-1])
    assert found.reason == "by asha after epoch 2 at 0.5"
    assert found.throughput is not None
    assert mlflow_status(found) == "FINISHED"
    assert run_tags(found, "x")["raysuite.status"] == "pruned"
    results = Results(tmp_path)
    for record in records:
        Journal(results.journal_file(PLAN.run_id)).write(record)
    assert results.end_of(PLAN.run_id) == records[-1]
    reset_failures([PLAN], results)  # it is no failure
    assert results.end_of(PLAN.run_id) == records[-1]


def test_progress_says_stopped_early() -> None:
    state = RunState(PLAN)
    for record in ended_early(PLAN, [0.4, 0.5]):
        state.take(record)
    assert (state.status, state.images_to_go) == ("pruned", 0)
    assert event(state, pruned()) == "stopped early by asha after epoch 2 at 0.5"
    bare = pruned(value=None, message="worst of 4")
    assert event(state, bare) == "stopped early by asha after epoch 2: worst of 4"


def test_the_report_says_stopped_early_and_equals_the_oracle(tmp_path: Path) -> None:
    results = write_results(tmp_path, spec=SPEC)
    file = results.journal_file(PLAN.run_id)
    file.unlink()
    for record in ended_early(PLAN, [0.4, 0.5]):
        Journal(file).write(record)
    assert [row.status for row in make_rows(results_figures(results))] == [
        "stopped early",
        *["finished"] * 3,
    ]
    build(results, pictures=False)
    said = (tmp_path / "report.html").read_text("utf-8")
    assert "1 run of 4 stopped early by the sweep" in said
    assert differences(results) == []


def test_trials_of_a_folder(tmp_path: Path) -> None:
    lost = RunFailed(run_id="", reason="out_of_memory", message="no room")
    results = write_results(tmp_path, spec=SPEC, fails={1: lost}, missing=[2, 3])
    for record in ended_early(PLANS[2], [0.91]):
        Journal(results.journal_file(PLANS[2].run_id)).write(record)
    first, second, third, fourth = trials(results)
    assert [trial.status for trial in (first, second, third, fourth)] == [
        "finished",
        "failed",
        "pruned",
        "missing",
    ]
    assert first.values == {"optimizer.lr": 0.1}
    assert first.goals["accuracy"] == max(accuracy for _, _, accuracy in first.curve)
    assert [number for number, _, _ in first.curve] == list(range(6))
    assert first.epochs == 6
    assert second.reason == "out_of_memory: no room"
    assert third.goals == {
        "accuracy": 0.91,
        "time_to_accuracy": third.curve[0][1],
        "throughput": pytest.approx(third.figures.throughput),
    }
    assert (third.epochs, third.worker_seconds) == (1, 90.0)
    assert fourth.goals == dict.fromkeys(GOALS)
    assert (fourth.worker_seconds, fourth.curve) == (0.0, ())


def test_worker_seconds_are_those_of_all_attempts_and_workers() -> None:
    plan = DATA | {"workers": 3}
    records = ended_early(PLAN, [0.4])
    again = [r.model_copy(update={"time": r.time + 1000.0}) for r in records]
    cut = records[:-1]
    lasted = cut[-1].time - cut[0].time
    assert trial_figures(plan, [*cut, *again]).worker_seconds == pytest.approx(3 * (lasted + 90.0))


def test_the_search_for_a_batch_is_its_trials_cost(tmp_path: Path) -> None:
    records = ended_early(PLAN, [0.4])
    found = batch_found(PLAN.run_id, time=records[0].time - 5.0, seconds=30.0)
    assert trial_figures(DATA | {"workers": 3}, [found]).worker_seconds == pytest.approx(3 * 30.0)
    whole = [found, *records]
    assert trial_figures(DATA, whole).worker_seconds == pytest.approx(30.0 + 90.0)
    results = write_sweep(tmp_path, trials=1, missing=[0])
    (plan,) = results.plans()
    for record in whole:
        Journal(results.journal_file(plan["run_id"])).write(record)
    assert wall_seconds(results.records(plan["run_id"])) == pytest.approx(120.0)


def test_a_gate_that_failed_tells_no_speed() -> None:
    caught = RunFailed(run_id=PLAN.run_id, reason="gate", message="differs")
    found = trial_figures(DATA, [*ended_early(PLAN, [0.95])[:-1], caught])
    assert found.goals["throughput"] is None
    assert found.goals["time_to_accuracy"] is None
    assert best([found], "accuracy") is None


def test_goals_of_a_section() -> None:
    assert wanted_goals({"goal": "throughput", "goals": []}) == ("throughput",)
    assert wanted_goals({"goals": ["accuracy", "throughput"]}) == ("accuracy", "throughput")
    assert wanted_goals({}) == ("accuracy",)


@pytest.mark.parametrize("reason", get_args(FailReason))
def test_every_failure_of_a_trial_is_told(reason: FailReason) -> None:
    end = RunFailed(run_id=PLAN.run_id, reason=reason, message="m")
    found = trial_figures(DATA, [end])
    assert (found.status, found.reason) == ("failed", f"{reason}: m")
    state = RunState(PLAN)
    state.take(end)
    assert state.status == "failed"


GOALS = goals_of(classifies=True)
ROW = st.tuples(*[st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0])] * len(GOALS))
STATUS = st.sampled_from(["finished", "pruned", "failed", "missing"])


def made(rows: list[tuple[tuple[float | None, ...], Any]]) -> list[TrialFigures]:
    some = trial_figures(DATA, [])
    return [
        TrialFigures(
            **(
                vars(some)
                | {
                    "number": number,
                    "status": status,
                    "goals": dict(zip(GOALS, values, strict=True)),
                }
            )
        )
        for number, (values, status) in enumerate(rows)
    ]


def better(goal: Goal, left: float, right: float) -> bool:
    return left < right if goal == "time_to_accuracy" else left > right


@given(st.lists(st.tuples(ROW, STATUS), max_size=12), st.sampled_from(GOALS))
def test_nothing_that_counts_is_better_than_the_best(rows: list[Any], goal: Goal) -> None:
    found = made(rows)
    counted = [t for t in found if t.counts and t.goals[goal] is not None]
    winner = best(found, goal)
    assert (winner is None) == (not counted)
    if winner is not None:
        mine = winner.goals[goal]
        assert mine is not None
        assert winner.status in ("finished", "pruned")
        for trial in counted:
            theirs = trial.goals[goal]
            assert theirs is not None
            assert not better(goal, theirs, mine)
            assert theirs != mine or winner.number <= trial.number


@given(st.lists(st.tuples(ROW, STATUS), max_size=12))
def test_the_front_is_what_nothing_dominates(rows: list[Any]) -> None:
    found = made(rows)
    goals: tuple[Goal, ...] = ("accuracy", "time_to_accuracy")

    def dominated(trial: TrialFigures) -> bool:
        def beats(other: TrialFigures) -> bool:
            pairs = [(goal, other.goals[goal], trial.goals[goal]) for goal in goals]
            if not other.counts or any(a is None for _, a, _ in pairs):
                return False
            worse = any(better(g, b, a) for g, a, b in pairs if a is not None and b is not None)
            some = any(better(g, a, b) for g, a, b in pairs if a is not None and b is not None)
            return some and not worse

        return any(beats(other) for other in found)

    expected = {
        trial.number
        for trial in found
        if trial.counts
        and all(trial.goals[goal] is not None for goal in goals)
        and not dominated(trial)
    }
    assert {trial.number for trial in pareto(found, goals)} == expected


@pytest.mark.parametrize(
    ("rows", "front"),
    [
        ([(0.5, 3.0), (0.5, 2.0)], [1]),  # a tie in accuracy
        ([(0.5, 2.0), (0.6, 2.0)], [1]),  # in time
        ([(0.5, 2.0), (0.5, 2.0)], [0, 1]),  # in both
        ([(0.5, 2.0), (0.6, 3.0)], [1, 0]),
    ],
)
def test_a_tie_in_one_goal_is_dominated(rows: list[tuple[float, float]], front: list[int]) -> None:
    found = made([((accuracy, seconds, None), "finished") for accuracy, seconds in rows])
    goals: tuple[Goal, ...] = ("accuracy", "time_to_accuracy")
    assert [trial.number for trial in pareto(found, goals)] == front


def test_a_trial_costs_less_where_its_result_is_better() -> None:
    low = CLASSIFICATION.main.model_copy(update={"name": "rmse", "higher_is_better": False})
    task = CLASSIFICATION.model_copy(update={"name": "own", "metrics": (low,), "primary": "rmse"})
    training = {**DATA["spec"]["training"], "target_accuracy": 0.1}
    plan = {**DATA, "task": task.model_dump(mode="json")}
    plan["spec"] = {**DATA["spec"], "training": training}
    made = epoch(PLAN, 0).model_copy(update={"val_accuracy": None, "val_metrics": {"rmse": 0.25}})
    found = trial_figures(plan, [run_records(PLAN)[0], verdict(PLAN), made])
    assert found.goals == {
        "metric": 0.25, "time_to_target": None, "throughput": found.figures.throughput
    }  # fmt: skip
    assert found.curve == ((0, made.elapsed_seconds, 0.25),)
    speed = found.goals["throughput"]
    assert speed is not None
    assert [found.cost(goal) for goal in found.goals] == [0.25, math.inf, -speed]
    (classifier,) = made_of_goals((0.5, 2.0, 9.0))
    assert [classifier.cost(goal) for goal in GOALS] == [-0.5, 2.0, -9.0]


def made_of_goals(*rows: tuple[float | None, ...]) -> list[TrialFigures]:
    return made([(row, "finished") for row in rows])


def test_time_at_work_is_never_negative() -> None:
    """The clock was set back in both attempts."""
    start = run_records(PLAN)[0].model_copy(update={"time": 100.0})
    late = verdict(PLAN, time=50.0)
    again = start.model_copy(update={"time": 200.0})
    assert list(at_work([start, late, again, late])) == [(100.0, 100.0), (200.0, 200.0)]
    assert list(at_work([late])) == []


def test_a_front_begins_with_the_best_in_the_first_goal() -> None:
    found = made_of_goals((0.5, 2.0, None), (0.7, 4.0, None), (0.6, 3.0, None), (0.6, 3.0, None))
    assert [each.number for each in pareto(found, ("accuracy", "time_to_accuracy"))] == [1, 2, 3, 0]
    assert [each.number for each in pareto(found, ("time_to_accuracy", "accuracy"))] == [0, 2, 3, 1]
    assert [each.number for each in ranked(found, "accuracy")] == [1, 2, 3, 0]
