"""A sweep's Records -> what MLflow keeps of it: what was searched, the best, the trials' values."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysuite.records import Results, RunFailed, make_rows, results_figures
from raysuite.records.sweep import trials
from raysuite.spec.tasks import CLASSIFICATION
from raysuite.track.entries import run_params
from raysuite.track.upload import (
    best_runs,
    points_of,
    ratio_points,
    runs_view,
    sweep_params,
    sweep_points,
    sweep_tags,
    trial_params,
    trial_points,
    trials_view,
)
from tests.fake_results import FOUR_KINDS, write_results
from tests.fake_sweeps import write_sweep

OOM = RunFailed(run_id="", reason="out_of_memory", message="no memory")


def searched(results: Results) -> dict[str, Any]:
    found = results.search()
    assert found is not None
    return found


def test_what_was_searched_stands_in_params(tmp_path: Path) -> None:
    search = searched(write_sweep(tmp_path, trials=1))
    params = sweep_params(search)
    assert params["space.optimizer.lr"] == '{"loguniform": [0.001, 1.0]}'
    assert params["search.scheduler.name"] == "asha"
    assert params["search.goals"] == '["accuracy"]'
    assert params["space.strategy.zero_stage"] == (
        '{"choice": [0, 1, 2], "when": {"strategy": "deepspeed"}}'
    )
    assert not [key for key in params if key.startswith("search.space")]


def test_ratios_have_the_time_of_the_suites_last_end(tmp_path: Path) -> None:
    """MLflow shows the latest point: a ratio that changes with its baseline must be that one."""
    rows = make_rows(results_figures(write_results(tmp_path, repeats=2)))
    points = list(ratio_points(rows))
    last = max(run.end.time for row in rows for run in row.runs if run.end)
    assert {point.timestamp for _, point in points} == {round(last * 1000)}
    expected = [
        (run.run_id, key, ratio.value)
        for row in rows
        for key, ratio in (("run/speed_up", row.speed_up), ("run/against_best", row.to_best))
        for run in row.runs
        if ratio
    ]
    assert len(expected) == 2 * 24
    assert [(run_id, point.key, point.value) for run_id, point in points] == expected
    *_, row = rows
    running = replace(row, runs=tuple(replace(run, end=None) for run in row.runs))
    ended = [run_id for run_id, _ in ratio_points([*rows[:-1], running])]
    assert ended == [
        run_id for run_id, *_ in expected if run_id not in {r.run_id for r in row.runs}
    ]


def test_the_table_of_trials_has_goals_and_searched_keys_as_columns(tmp_path: Path) -> None:
    search = searched(write_sweep(tmp_path, trials=1))
    view = json.loads(trials_view(search, CLASSIFICATION, "feed"))
    assert {"metrics.`goal/accuracy`", "params.`optimizer.lr`", "params.`strategy`"} <= set(
        view["selectedColumns"]
    )
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`goal/accuracy`", False)
    assert view["searchFilter"].endswith("'feed' and tags.`raysuite.kind` = 'trial'")
    search["search"]["goals"] = ["time_to_accuracy", "throughput"]
    view = json.loads(trials_view(search, CLASSIFICATION, "feed"))
    assert (view["orderByKey"], view["orderByAsc"]) == (
        "metrics.`goal/time_to_accuracy_seconds`",
        True,
    )
    assert view["selectedColumns"][1] == "metrics.`goal/images_per_second`"


def test_the_table_of_runs_has_figures_and_what_is_compared_as_columns(tmp_path: Path) -> None:
    plans = write_results(tmp_path, FOUR_KINDS).plans()
    view = json.loads(runs_view(plans, "feed"))
    columns = view["selectedColumns"]
    assert columns[:3] == [
        "metrics.`run/images_per_second`",
        "metrics.`run/against_best`",
        "metrics.`run/final_accuracy`",
    ]
    scaled = write_results(tmp_path / "scaled").plans()
    assert "metrics.`run/speed_up`" in json.loads(runs_view(scaled, "feed"))["selectedColumns"]
    params = [each for each in columns if each.startswith("params")]
    keys = ("strategy.name", "loader.name", "training.compile", "plan.workers")
    assert params == [f"params.`{key}`" for key in keys]
    assert "'feed'" in view["searchFilter"]
    assert view["orderByAsc"] is False


def test_searched_keys_are_params_of_their_own(tmp_path: Path) -> None:
    results = write_sweep(tmp_path)
    for trial in trials(results):
        params = run_params(trial.figures.plan) | trial_params(trial.values)
        assert float(params["optimizer.lr"]) == trial.values["optimizer.lr"]
        assert params["training.global_batch"] == str(trial.values["training.global_batch"])
        assert params["strategy"] == params["strategy.name"]
        assert ("strategy.zero_stage" in trial.values) == (params["strategy"] == "deepspeed")


def test_the_best_is_one_and_the_front_may_be_several(tmp_path: Path) -> None:
    one = write_sweep(tmp_path / "one", fails={0: OOM})
    found, search = trials(one), searched(one)
    [winner] = best_runs(search, found)
    top = max(trial.goals["accuracy"] or 0 for trial in found if trial.counts)
    assert {t.run_id: t.goals["accuracy"] for t in found}[winner] == top
    tags = sweep_tags(search, found)
    assert tags["raysuite.sweep.ended"] == "12"
    assert tags["raysuite.sweep.best"] == winner[:3].lstrip("0")
    goals = ("accuracy", "throughput")
    several = write_sweep(tmp_path / "several", scheduler="none", goals=goals)
    search = searched(several)
    front = best_runs(search, trials(several))
    assert len(front) > 1
    numbers = sorted(trial.number for trial in trials(several) if trial.run_id in front)
    assert numbers[-1] > 9, "a number of two digits is sorted as a number"
    assert sweep_tags(search, trials(several)) == {
        "raysuite.sweep.goals": "accuracy, throughput",
        "raysuite.sweep.ended": "12",
        "raysuite.sweep.best": ", ".join(map(str, numbers)),
    }


def test_the_best_so_far_never_falls(tmp_path: Path) -> None:
    results = write_sweep(tmp_path, missing=[11])
    search = searched(results)
    points = list(sweep_points(search, trials(results)))
    assert [point.step for point in points] == list(range(1, 12))
    values = [point.value for point in points]
    assert values == sorted(values)
    assert {point.key for point in points} == {"best/accuracy"}
    assert list(sweep_points(search, trials(results)[::-1])) == points
    assert sweep_tags(search, trials(results))["raysuite.sweep.ended"] == "11"
    times = [point.timestamp for point in points]
    assert times == sorted(times)


def test_a_failed_trial_takes_no_step_from_those_after_it(tmp_path: Path) -> None:
    search = searched(write_sweep(tmp_path / "whole", trials=4, scheduler="none"))
    failed = trials(write_sweep(tmp_path / "failed", trials=4, scheduler="none", fails={0: OOM}))
    points = list(sweep_points(search, failed))
    assert [point.step for point in points] == [1, 2, 3]


@pytest.mark.parametrize("goals", [("accuracy",), ("accuracy", "throughput")])
def test_a_trial_tells_its_goals_once_it_has_ended(tmp_path: Path, goals: tuple[str, ...]) -> None:
    scheduler = "asha" if len(goals) == 1 else "none"
    results = write_sweep(tmp_path, missing=[3], scheduler=scheduler, goals=goals)
    search = searched(results)
    told = {trial.number: list(trial_points(search, trial)) for trial in trials(results)}
    assert told[3] == []
    names = {"accuracy": "goal/accuracy", "throughput": "goal/images_per_second"}
    whole = Counter([*(names[goal] for goal in goals), "trial/worker_seconds", "trial/epochs"])
    for number, points in told.items():
        if number != 3:
            assert Counter(point.key for point in points) == whole
            found, trial = {p.key: p.value for p in points}, trials(results)[number]
            seconds = trial.figures.epochs[-1].elapsed_seconds + 2  # as fake_sweeps makes them
            assert found["trial/worker_seconds"] == pytest.approx(2 * seconds, abs=0.01)
            assert found["trial/epochs"] == len(trial.figures.epochs)
            folder = results.journal_file(trial.run_id).parent
            every = points_of(search, trial, folder)
            assert every[0].key == names[goals[0]], "MLflow's comparisons begin with it"
            assert {p.key.partition("/")[0] for p in every} >= {"goal", "trial", "step", "epoch"}
    pruned = [trial for trial in trials(results) if trial.status == "pruned"]
    assert bool(pruned) == (scheduler == "asha")
    for trial in pruned:  # what was ended early tells what it reached
        [accuracy] = [p.value for p in told[trial.number] if p.key == "goal/accuracy"]
        assert accuracy == pytest.approx(trial.goals["accuracy"])
