"""What is drawn from a space: within its bounds, under its conditions, the same each time."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from ray import tune

from raysuite.plan.space import active, count, draw, drawn
from raysuite.spec.search import Dimension, SearchOptions, name_of

SPACE: dict[str, Any] = {
    "optimizer.lr": {"loguniform": [0.01, 1.0]},
    "optimizer.momentum": {"uniform": [0.5, 0.95]},
    "optimizer.weight_decay": {"quniform": [0.0, 0.0009, 0.0003]},
    "training.ema_decay": {"normal": [0.9, 0.01]},
    "model.options.width": {"randint": [8, 64]},
    "strategy.zero_stage": {"choice": [0, 1, 2], "when": {"strategy": "deepspeed"}},
    "strategy": {"choice": ["ddp", "horovod", {"name": "deepspeed", "overlap_comm": True}]},
    "strategy.offload": {"choice": ["none", "optimizer"], "when": {"strategy.zero_stage": 2}},
}


def search(space: dict[str, Any] | None = None, **options: Any) -> SearchOptions:
    return SearchOptions.model_validate({"trials": 20, "space": space or SPACE} | options)


def numbers() -> st.SearchStrategy[float]:
    return st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: float(f"{value:.9g}"))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[float]]:
    kind = draw(st.sampled_from(["uniform", "loguniform", "quniform", "randint"]))
    if kind == "randint":
        low = draw(st.integers(-1000, 1000))
        return kind, [low, low + draw(st.integers(1, 1000))]
    low = abs(draw(numbers())) + 1e-9 if kind == "loguniform" else draw(numbers())
    high = low + max(draw(st.floats(1e-6, 1e6)), abs(low) * 1e-6)
    if kind == "quniform":
        step, start = draw(st.floats(1e-6, 1e6)), draw(st.integers(-50, 50))
        return kind, [start * step, (start + draw(st.integers(1, 50))) * step, step]
    return kind, [low, high]


@given(ranges(), st.integers(0, 1000))
def test_every_value_lies_within_its_bounds(given: tuple[str, list[float]], seed: int) -> None:
    kind, arguments = given
    low, high = arguments[:2]
    for values in drawn(search({"seed": {kind: arguments}}, seed=seed)):
        value = values["seed"]
        if kind == "randint":
            assert isinstance(value, int)
            assert low <= value < high
        else:
            slack = 1e-9 * max(abs(low), abs(high)) if kind == "quniform" else 0.0
            assert low - slack <= value <= high + slack


@given(st.integers(-50, 50), st.integers(1, 40), st.sampled_from([0.1, 0.25, 1e-4, 3, 0.3]))
def test_a_quniform_stands_on_its_steps(start: int, steps: int, step: float) -> None:
    low = start * step
    dimension = Dimension(quniform=[low, low + steps * step, step])
    expected = [low + number * step for number in range(steps + 1)]
    assert dimension.steps() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for values in drawn(search({"seed": dimension.model_dump(exclude_none=True)})):
        assert values["seed"] in dimension.steps()


@given(st.integers(0, 10_000))
def test_a_conditional_key_is_there_exactly_when_its_condition_holds(seed: int) -> None:
    for values in drawn(search(seed=seed)):
        deep = name_of(values["strategy"]) == "deepspeed"
        assert ("strategy.zero_stage" in values) == deep
        assert ("strategy.offload" in values) == (deep and values.get("strategy.zero_stage") == 2)
        others = {"strategy.zero_stage", "strategy.offload"}
        assert set(values) - others == set(SPACE) - others
        assert list(values) == [key for key in SPACE if key in values]


@given(st.integers(0, 10_000), st.integers(1, 19))
def test_the_same_seed_gives_the_same_trials_however_many(seed: int, fewer: int) -> None:
    whole = list(drawn(search(seed=seed)))
    assert list(drawn(search(seed=seed))) == whole
    assert list(drawn(search(trials=fewer, seed=seed))) == whole[:fewer]
    assert list(drawn(search(seed=seed + 1))) != whole


def test_every_choice_comes() -> None:
    found = [name_of(values["strategy"]) for values in drawn(search(trials=200))]
    assert {name: found.count(name) > 40 for name in set(found)} == {
        "ddp": True,
        "horovod": True,
        "deepspeed": True,
    }


def test_each_order_of_magnitude_comes_alike() -> None:
    found = [v["optimizer.lr"] for v in drawn(search(trials=1000))]
    below = sum(value < 0.1 for value in found) / len(found)
    assert 0.45 < below < 0.55
    assert all(len(f"{value:g}") <= 11 for value in found)


def test_a_grid_is_crossed_with_every_trial_that_is_drawn() -> None:
    space = {**SPACE, "seed": {"grid": [0, 1]}, "resources.workers": {"grid": [1, 2]}}
    found = list(drawn(search(space, trials=3)))
    assert len(found) == count(search(space, trials=3)) == 12
    assert [(v["seed"], v["resources.workers"]) for v in found[:4]] == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]
    for first in range(0, 12, 4):
        same = [{**v, "seed": 0, "resources.workers": 1} for v in found[first : first + 4]]
        assert all(each == same[0] for each in same)


def test_a_searcher_that_uses_results_has_as_many_trials_as_are_asked_for() -> None:
    assert count(search(searcher="optuna", trials=7)) == 7


def test_a_grid_changes_no_other_value_of_a_trial() -> None:
    found = list(drawn(search({"seed": {"grid": [0, 1]}, **SPACE}, trials=3)))
    alone = list(drawn(search(trials=3)))
    assert found == [{"seed": seed, **values} for values in alone for seed in (0, 1)]


def test_the_searcher_grid_makes_every_combination_once() -> None:
    space: dict[str, Any] = {
        "strategy": {"choice": ["ddp", "deepspeed"]},
        "strategy.zero_stage": {"grid": [0, 1, 2], "when": {"strategy": "deepspeed"}},
        "seed": {"grid": [0, 1]},
    }
    found = list(drawn(search(space, trials=None, searcher="grid")))
    stages = [("ddp", None), *(("deepspeed", stage) for stage in range(3))]
    expected = set(itertools.product(stages, (0, 1)))
    seen = [((v["strategy"], v.get("strategy.zero_stage")), v["seed"]) for v in found]
    assert len(seen) == len(expected)
    assert set(seen) == expected


def test_a_condition_on_a_key_that_is_left_out_does_not_hold() -> None:
    space = search().space
    values = {"strategy": "ddp", "strategy.zero_stage": 2, "strategy.offload": "optimizer"}
    assert active(space, values) == {"strategy": "ddp"}


@given(st.floats(-10, 10), st.floats(0.01, 10))
def test_a_normal_lies_about_its_mean(mean: float, spread: float) -> None:
    found = [v["x"] for v in drawn(search({"x": {"normal": [mean, spread]}}, trials=400, seed=3))]
    error = sum(found) / len(found) - mean
    assert abs(error) < 5 * spread / math.sqrt(len(found))


def test_a_grid_tells_apart_what_python_takes_for_equal() -> None:
    grid = {"model.options.x": {"grid": [1, True, 1.0, {"name": "a"}]}}
    found = [values["model.options.x"] for values in drawn(search(grid, trials=1))]
    assert [str(each) for each in found] == ["1", "True", "1.0", "{'name': 'a'}"]


STEPPED: dict[str, list[Any]] = {
    "qloguniform": [0.5, 64.0, 0.5],
    "qlograndint": [8, 256, 8],
    "qrandint": [8, 24, 8],
    "lograndint": [8, 1024],
}


@pytest.mark.parametrize("kind", STEPPED)
def test_values_with_steps(kind: str) -> None:
    dimension = Dimension.model_validate({kind: STEPPED[kind]})
    found = [v["x"] for v in drawn(search({"x": {kind: STEPPED[kind]}}, trials=2000, seed=1))]
    steps = dimension.steps()
    assert set(found) <= set(steps)
    assert {type(each) for each in found} == {type(steps[0])}
    assert dimension.edges() == [steps[0], steps[-1]]
    low, high = STEPPED[kind][:2]
    if "log" in kind:  # half of all below the geometric mean
        below = sum(value < math.sqrt(low * high) for value in found) / len(found)
        assert 0.4 < below < 0.6
    else:
        assert {each: found.count(each) > 500 for each in found} == dict.fromkeys(steps, True)


class SameChance(np.random.Generator):
    """Ray's source of random numbers, which takes them from `random`."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(np.random.PCG64())
        self._chance = chance

    def uniform(self, low: float, high: float, size: int) -> Any:  # type: ignore[override]
        return np.array([self._chance.uniform(low, high)])

    def normal(self, mean: float, spread: float, size: int) -> Any:  # type: ignore[override]
        return np.array([self._chance.gauss(mean, spread)])

    def integers(self, low: int, high: int, size: int) -> Any:  # type: ignore[override]
        return np.array([self._chance.randrange(low, high)])

    def choice(self, places: Any, size: int) -> Any:  # type: ignore[override]
        return np.array([self._chance.choice(places)])


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("uniform", [-1.0, 3.0]),
        ("quniform", [0.5, 1.25, 0.25]),
        ("loguniform", [1e-4, 1.0]),
        ("qloguniform", [0.5, 64.0, 0.5]),
        ("randn", [1.0, 0.5]),
        ("qrandn", [1.0, 0.5, 0.25]),
        ("randint", [3, 9]),
        ("qrandint", [1, 10, 3]),
        ("qrandint", [-7, 9, 2]),
        ("qrandint", [1, 10, 1]),
        ("lograndint", [2, 300]),
        ("qlograndint", [5, 300, 5]),
        ("qlograndint", [4, 37, 5]),
        ("qlograndint", [1, 10, 1]),
        ("choice", ["a", "b", "c"]),
    ],
)
def test_each_draw_equals_ray_tunes(kind: str, arguments: list[Any]) -> None:
    dimension = Dimension.model_validate({kind: arguments})
    domain = getattr(tune, kind)(*([arguments] if kind == "choice" else arguments))
    ours, rays = random.Random(kind), SameChance(random.Random(kind))
    for _ in range(500):
        mine, rays_own = draw(dimension, ours), domain.sample(random_state=rays)
        assert type(mine) is type(rays_own)
        assert mine == (pytest.approx(rays_own, rel=1e-5) if type(mine) is float else rays_own)


def test_a_normal_on_steps() -> None:
    found = [v["x"] for v in drawn(search({"x": {"qrandn": [1.0, 0.5, 0.25]}}, trials=400, seed=3))]
    assert all((each / 0.25).is_integer() for each in found)
    assert abs(sum(found) / len(found) - 1.0) < 5 * 0.5 / math.sqrt(len(found))


def test_names_of_ray_tune_mean_the_same() -> None:
    assert Dimension.model_validate({"randn": [0, 1]}) == Dimension(normal=[0, 1])
    assert Dimension.model_validate({"grid_search": [1, 2]}) == Dimension(grid=[1, 2])


@pytest.mark.parametrize(
    "given",
    [
        {"randn": [0, 1], "normal": [0, 1]},
        {"qrandn": [0, 1, 0]},
        {"qrandint": [1, 8, 0]},
        {"qrandint": [1, 8, 9]},
        {"qlograndint": [0, 8, 1]},
        {"lograndint": [0, 8]},
        {"qloguniform": [0.0, 1.0, 0.5]},
        {"quniform": [0.5, 1.0, 0.2]},
        {"qloguniform": [1.0, 10.0, 3.0]},
        {"qrandint": [1, 5, 6]},
    ],
)
def test_what_cannot_be_drawn_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Dimension.model_validate(given)
