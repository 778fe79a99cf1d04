"""Optuna decides trials by what the journals tell, before a sweep is resumed and after."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from raysuite.orchestrate.sweep.optuna import (
    OptunaAlgorithm,
    _suggest,
    distribution_of,
    internal_value,
    ordered,
    spec_value,
)
from raysuite.plan.space import draw
from raysuite.records.derive import Status
from raysuite.records.sweep import TrialFigures
from raysuite.spec.search import SearchOptions
from raysuite.spec.tasks import CLASSIFICATION

SPACE: dict[str, Any] = {
    "optimizer.lr": {"loguniform": [1e-4, 1.0]},
    "optimizer.momentum": {"uniform": [0.0, 0.99]},
    "optimizer.weight_decay": {"quniform": [0.0, 0.001, 0.0001]},
    "training.ema_decay": {"normal": [0.9, 0.01]},
    "training.global_batch": {"randint": [8, 64]},
    "strategy.zero_stage": {"choice": [1, 2], "when": {"strategy": "deepspeed"}},
    "strategy": {"choice": ["ddp", {"name": "deepspeed", "bucket_mb": 2}]},
}


def search(**changes: Any) -> SearchOptions:
    data = {"trials": 30, "space": SPACE, "searcher": {"name": "optuna", "startup_trials": 4}}
    return SearchOptions.model_validate({**data, **changes})


def trial(
    number: int, values: dict[str, Any], status: Status = "finished", **goals: float | None
) -> TrialFigures:
    objective = {"accuracy": None, "time_to_accuracy": None, "throughput": None, **goals}
    figures: Any = SimpleNamespace(task=CLASSIFICATION)
    return TrialFigures(
        number=number,
        run_id=f"{number:03d}",
        values=values,
        status=status,
        reason="",
        goals=objective,  # type: ignore[arg-type]
        epochs=1,
        worker_seconds=1.0,
        curve=(),
        figures=figures,
    )


def accuracy(values: dict[str, Any]) -> float:
    """Best at a learning rate of 0.1."""
    return 1.0 - abs(math.log10(values["optimizer.lr"]) + 1) / 4


def made(options: SearchOptions, count: int, rate: str = "optimizer.lr") -> list[TrialFigures]:
    decider = OptunaAlgorithm(options)
    trials: list[TrialFigures] = []
    for number in range(count):
        values = decider.next(trials, [])
        assert values is not None
        objective = accuracy({"optimizer.lr": max(values[rate], 1e-3)})
        trials.append(trial(number, values, accuracy=objective, throughput=number + 1.0))
    return trials


def ends(trials: Sequence[TrialFigures]) -> list[dict[str, Any]]:
    return [each.values for each in trials]


def test_every_value_lies_in_its_space_and_conditions_hold():
    for each in made(search(), 20):
        values = each.values
        assert 1e-4 <= values["optimizer.lr"] <= 1.0
        assert 0.0 <= values["optimizer.momentum"] <= 0.99
        assert values["optimizer.weight_decay"] in search().space["optimizer.weight_decay"].steps()
        assert abs(values["training.ema_decay"] - 0.9) < 0.06
        assert values["training.global_batch"] in range(8, 64)
        assert ("strategy.zero_stage" in values) == (values["strategy"] != "ddp")


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("qloguniform", [0.5, 8.0, 0.5]),
        ("qrandn", [1.0, 0.5, 0.25]),
        ("qrandint", [8, 64, 8]),
        ("lograndint", [1, 100]),
        ("qlograndint", [8, 256, 8]),
    ],
)
def test_distributions_with_steps(kind: str, arguments: list[float]) -> None:
    options = search(space={"x": {kind: arguments}})
    dimension = options.space["x"]
    values = [trial.values["x"] for trial in made(options, 12, rate="x")]
    assert all(value == dimension.on_step(value) for value in values)
    assert len(set(values)) > 3


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_suggestions_are_the_same_after_a_resumption(sampler):
    options = search(searcher={"name": "optuna", "sampler": sampler, "startup_trials": 4})
    whole = made(options, 12)
    assert len({str(each.values) for each in whole}) == 12
    for number in (1, 5, 11):
        assert OptunaAlgorithm(options).next(whole[:number], []) == whole[number].values


def test_tpe_learns_where_the_best_are():
    trials = made(search(), 24)
    late = [abs(math.log10(each.values["optimizer.lr"]) + 1) for each in trials[12:]]
    early = [abs(math.log10(each.values["optimizer.lr"]) + 1) for each in trials[:4]]
    assert sum(late) / len(late) < sum(early) / len(early)


@pytest.mark.parametrize(
    ("sampler", "startup", "learns"),
    [
        ("random", 4, False),
        ("tpe", 4, True),
        ("tpe", 20, False),
        ("nsga2", 4, True),
        ("nsga2", 20, False),
    ],
)
def test_a_sampler_learns_from_objectives_after_its_startup_trials(
    sampler: str, startup: int, learns: bool
) -> None:
    options = search(searcher={"name": "optuna", "sampler": sampler, "startup_trials": startup})
    known = made(options, 12)
    turned = [
        replace(each, goals={**each.goals, "accuracy": 1 - (each.goals["accuracy"] or 0)})
        for each in known
    ]
    first, second = (OptunaAlgorithm(options).next(trials, []) for trials in (known, turned))
    assert (first != second) == learns


def test_two_goals_are_known_to_both_samplers():
    for sampler in ("tpe", "nsga2"):
        options = search(
            goals=["accuracy", "throughput"],
            searcher={"name": "optuna", "sampler": sampler, "startup_trials": 4},
        )
        assert len(made(options, 10)) == 10


def test_failed_pruned_and_running_trials_are_known_and_counted():
    options = search(trials=4)
    values = ends(made(options, 4))
    known = [
        trial(0, values[0], "failed"),
        trial(1, values[1], "pruned", accuracy=0.3),
        trial(2, values[2], "missing"),
    ]
    following = OptunaAlgorithm(options).next(known, [])
    assert following is not None
    assert following not in values[:3]
    assert OptunaAlgorithm(options).next([*known, trial(3, following)], []) is None


@pytest.mark.parametrize("status", ["missing", "stopped"])
def test_suggestions_differ_from_running_trials(status):
    options = search()
    known = made(options, 12)
    following = OptunaAlgorithm(options).next(known, [])
    assert following is not None

    def after(status: Status) -> dict[str, Any]:
        beside = [trial(12 + number, following, status) for number in range(8)]
        found = OptunaAlgorithm(options).next([*known, *beside], [])
        assert found is not None
        return found

    assert after(status) != after("failed")


def test_trials_that_missed_their_target_count_by_their_accuracy():
    options = search(goal="time_to_accuracy")
    trials: list[TrialFigures] = []
    for number in range(24):
        values = OptunaAlgorithm(options).next(trials, [])
        assert values is not None
        made = trial(number, values, accuracy=accuracy(values))
        trials.append(replace(made, curve=((0, 9.0, accuracy(values)),)))
    late = [accuracy(each.values) for each in trials[12:]]
    early = [accuracy(each.values) for each in trials[:4]]
    assert sum(late) / len(late) > sum(early) / len(early)


def test_infeasible_values_are_not_suggested_again():
    options = search()
    first = OptunaAlgorithm(options).next([], [])
    assert first is not None
    assert OptunaAlgorithm(options).next([], [first]) != first


@pytest.mark.parametrize(
    ("distribution", "value", "expected"),
    [
        ({"normal": [2.0, 0.5]}, 2.0, 0.5),
        ({"normal": [2.0, 0.5]}, 2.5, 0.841345),  # one standard deviation above the mean
        ({"normal": [2.0, 0.5]}, -99.0, 1e-6),
        ({"qrandn": [2.0, 0.5, 1.0]}, 99.0, 1 - 1e-6),
        ({"quniform": [0.0, 2.0, 0.5]}, 1.5, 1.5),
        ({"qlograndint": [10, 70, 10]}, 10, 1.41421356),  # of 1 to 2, the middle in the logarithm
        ({"qrandint": [8, 64, 8]}, 24, 2),
        ({"choice": ["a", "b", "c"]}, "c", 2),
        ({"grid": ["a", "b", "c"]}, "b", 1),
        ({"uniform": [0.0, 1.0]}, 0.25, 0.25),
    ],
    ids=str,
)
def test_a_known_value_has_its_place_in_optunas_range(
    distribution: dict[str, Any], value: Any, expected: float
) -> None:
    found = internal_value(search(space={"x": distribution}).space["x"], value)
    assert found == pytest.approx(expected, rel=0, abs=1e-7 if found > 0.99 else 1e-6)
    assert 0 < found < 1 or "normal" not in distribution


@pytest.mark.parametrize(
    ("distribution", "values", "share"),
    [
        ({"lograndint": [1, 8]}, {1}, 1 / 3),  # three doublings: 1, 2 and 3, 4 to 7
        ({"qlograndint": [10, 70, 10]}, {40, 50, 60, 70}, 1 / 3),
        ({"qlograndint": [1, 70, 10]}, {10}, 1 / 3),
        ({"qrandint": [0, 10, 5]}, {10}, 1 / 3),
        ({"quniform": [0.0, 1.0, 0.5]}, {1.0}, 1 / 4),
        ({"qloguniform": [1.0, 5.0, 1.0]}, {1.0}, math.log(1.5) / math.log(5)),
    ],
    ids=str,
)
def test_values_have_the_same_probability_with_optuna_as_with_random(
    distribution: dict[str, Any], values: set[float], share: float
) -> None:
    dimension = search(space={"x": distribution}).space["x"]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    numbers = [_suggest(study.ask(), "x", distribution_of(dimension)) for _ in range(1000)]
    found = [spec_value(dimension, number) for number in numbers]
    drawn = [draw(dimension, random.Random(number)) for number in range(1000)]
    for each in (found, drawn):
        assert sum(value in values for value in each) / 1000 == pytest.approx(share, abs=0.05)
    kept = [spec_value(dimension, internal_value(dimension, value)) for value in set(found)]
    assert kept == list(set(found))


LOW = 1.000001
"""More digits than a drawn number has."""


@pytest.mark.parametrize(
    ("distribution", "expected", "found", "value"),
    [
        ({"uniform": [0.5, 2.0]}, FloatDistribution(0.5, 2.0), 1.23456789, 1.23457),
        ({"uniform": [0.5, 1.9999999]}, FloatDistribution(0.5, 1.9999999), 1.9999999, 1.9999999),
        ({"loguniform": [LOW, 2.0]}, FloatDistribution(LOW, 2.0, log=True), LOW, LOW),
        ({"normal": [2.0, 0.5]}, FloatDistribution(1e-6, 1 - 1e-6), 0.841344746, 2.5),
        ({"qrandn": [2.0, 0.5, 0.25]}, FloatDistribution(1e-6, 1 - 1e-6), 0.8, 2.5),
        ({"qloguniform": [0.5, 8.0, 0.5]}, FloatDistribution(0.5, 8.0, log=True), 1.3, 1.5),
        ({"qlograndint": [8, 256, 8]}, FloatDistribution(1, 33, log=True), 2.7, 16),
        ({"randint": [8, 64]}, IntDistribution(0, 55), 55, 63),
        ({"lograndint": [1, 100]}, FloatDistribution(1, 100, log=True), 7.9, 7),
        ({"quniform": [0.0, 2.0, 0.5]}, FloatDistribution(0, 2), 1.6, 1.5),
        ({"qrandint": [8, 64, 8]}, IntDistribution(0, 7), 7, 64),
        ({"choice": ["a", {"name": "b"}]}, CategoricalDistribution((0, 1)), 1, {"name": "b"}),
        ({"grid": [True, False]}, CategoricalDistribution((0, 1)), 0, True),
    ],
    ids=str,
)  # fmt: skip
def test_optuna_draws_from_bounds_and_its_numbers_are_values_of_the_spec(
    distribution: dict[str, Any], expected: object, found: float, value: object
) -> None:
    dimension = search(space={"x": distribution}).space["x"]
    assert distribution_of(dimension) == expected
    made = spec_value(dimension, found)
    assert (made, type(made)) == (value, type(value))


def test_keys_are_drawn_after_those_on_which_they_depend() -> None:
    space = search(
        space={
            "a": {"choice": [1, 2], "when": {"b": 1, "c": 1}},
            "b": {"choice": [1], "when": {"c": 1}},
            "c": {"choice": [1]},
            "d": {"choice": [1]},
        }
    ).space
    assert [key for key, _ in ordered(space)] == ["c", "d", "b", "a"]


def test_each_goal_has_its_own_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    create = optuna.create_study

    def study(**given: Any) -> optuna.Study:
        made.append(given["directions"])
        return create(**given)

    monkeypatch.setattr(optuna, "create_study", study)
    for goals in (["time_to_accuracy", "accuracy"], ["throughput"]):
        OptunaAlgorithm(search(goals=goals)).next([], [])
    assert made == [["minimize", "maximize"], ["maximize"]]


def test_a_trial_without_one_of_its_goals_is_no_example_and_generations_count_the_others() -> None:
    options = search(
        goals=["accuracy", "throughput"],
        space={"x": {"uniform": [0.0, 1.0]}},
        searcher={"name": "optuna", "sampler": "nsga2", "startup_trials": 2},
    )
    both, values = {"accuracy": 0.3, "throughput": 5.0}, {"x": 0.5, "gone": 1}
    trials = [trial(0, values, **both), trial(1, values, accuracy=0.3), trial(2, values, **both)]
    trials += [trial(3, values, **both), trial(4, values, "pruned", **both)]
    known = list(OptunaAlgorithm(options)._known(trials, []))
    assert [each.state.name for each in known] == [
        *("COMPLETE", "FAIL"),
        *["COMPLETE"] * 2,
        "PRUNED",
    ]
    attributes = [list(each.system_attrs.values()) for each in known]
    assert attributes == [[0], [], [0], [1], []]
    assert known[0].values == [0.3, 5.0]
    assert known[0].params == {"x": 0.5}


def test_optuna_knows_each_trial_by_its_state_and_objective():
    options = search(space={"x": {"uniform": [0.0, 1.0]}})
    values = {"x": 0.5}
    trials = [
        trial(0, values, accuracy=0.3),
        trial(1, values, "pruned", accuracy=0.2),
        trial(2, values, "missing"),
        trial(3, values, "stopped", accuracy=0.4),
        trial(4, values, "failed", accuracy=0.4),
        trial(5, values),
        trial(6, values, accuracy=math.nan),
        replace(trial(7, values, "pruned", accuracy=0.1), epochs=3),
        replace(trial(8, values, "pruned", accuracy=0.1), epochs=0),
    ]
    known = list(OptunaAlgorithm(options)._known(trials, [{"x": 0.25}]))
    names = [each.state.name for each in known]
    assert names == [
        *("COMPLETE", "PRUNED"),
        *["RUNNING"] * 2,
        *["FAIL"] * 3,
        *["PRUNED"] * 2,
        "FAIL",
    ]
    assert [each.intermediate_values for each in known[7:9]] == [{3: 0.1}, {1: 0.1}]
    assert known[0].values == [0.3]
    assert known[1].intermediate_values == {1: 0.2}
    assert [each.params["x"] for each in known] == [0.5] * 9 + [0.25]
