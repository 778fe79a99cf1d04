"""Who takes whose weights: the worst those of the best, the same each time, with values nearby."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.plan.population import Standing, explored, judge, taken, with_values
from raysuite.plan.space import draw, perturbed
from raysuite.plan.trials import trial_plan
from raysuite.spec import Document
from raysuite.spec.search import Dimension, SearchOptions

SPACE: dict[str, Any] = {
    "optimizer.lr": {"loguniform": [0.001, 1.0]},
    "optimizer.momentum": {"quniform": [0.5, 0.9, 0.1]},
    "schedule": {"choice": ["constant", {"name": "step", "milestones": [3]}, "cosine"]},
    "schedule.factor": {"uniform": [0.1, 1.0], "when": {"schedule": "step"}},
    "seed": {"randint": [0, 1000]},
}


def search(**scheduler: Any) -> SearchOptions:
    options = {"name": "pbt", "interval_epochs": 2} | scheduler
    return SearchOptions.model_validate({"trials": 8, "space": SPACE, "scheduler": options})


def standing(number: int, value: float, **values: Any) -> Standing:
    own = {"optimizer.lr": 0.1, "optimizer.momentum": 0.7, "schedule": "cosine", "seed": number}
    return Standing(number, f"run-{number}", value, own | values)


def population(*values: float) -> list[Standing]:
    return [standing(number, value) for number, value in enumerate(values)]


accuracies = st.lists(st.sampled_from([-math.inf, 0.0, 0.1, 0.5, 0.9]), min_size=1, max_size=12)


@given(accuracies, st.floats(0.01, 0.5), st.integers(0, 100), st.randoms())
def test_the_turns_follow_from_where_the_trials_stand(
    values: list[float], quantile: float, epochs: int, chance: random.Random
) -> None:
    asked, stand = search(quantile=quantile), population(*values)
    turns = judge(asked, stand, epochs)
    shuffled = list(stand)
    chance.shuffle(shuffled)
    assert judge(asked, shuffled, epochs) == turns
    assert sorted(turn.trial.number for turn in turns) == list(range(len(values)))
    assert [turn.place for turn in turns] == list(range(1, len(values) + 1))
    few = taken(asked.scheduler, len(values))  # type: ignore[arg-type]
    for turn in turns:
        assert turn.population == len(values)
        if turn.source is None:
            assert turn.values == turn.trial.values
            continue
        assert turn.place > len(values) - few
        place = next(each.place for each in turns if each.trial == turn.source)
        assert place <= few
        assert turn.source.value > turn.trial.value
        assert turn.values["seed"] == turn.trial.number
    givers = {turn.source.number for turn in turns if turn.source}
    takers = {turn.trial.number for turn in turns if turn.source}
    assert not givers & takers


def test_the_worst_quarter_takes_from_the_best_quarter() -> None:
    turns = judge(search(), population(0.5, 0.9, 0.1, 0.7, 0.3, 0.8, 0.2, 0.4), 2)
    assert [turn.trial.number for turn in turns] == [1, 5, 3, 0, 7, 4, 6, 2]
    assert [turn.source is not None for turn in turns] == [False] * 6 + [True] * 2


@pytest.mark.parametrize(
    ("population", "quantile", "few"),
    [
        (8, 0.25, 2),
        (5, 0.25, 2),
        (9, 0.25, 3),
        (10, 0.2, 2),
        (25, 0.28, 7),
        (1, 0.25, 0),
        (3, 0.5, 1),
        (2, 0.1, 1),
    ],
)
def test_a_quantile_is_rounded_up_to_half_at_most(
    population: int, quantile: float, few: int
) -> None:
    assert taken(search(quantile=quantile).scheduler, population) == few  # type: ignore[arg-type]


def test_each_of_the_best_is_taken_from_alike_and_anew_by_each_trial_and_epoch() -> None:
    stand = population(0.5, 0.9, 0.1, 0.7, 0.3, 0.8, 0.2, 0.4)
    turns = [judge(search(), stand, epochs)[-2:] for epochs in range(400)]
    givers = [(a.source.number, b.source.number) for a, b in turns if a.source and b.source]
    # of two givers and two takers, all pairs alike (binomial, 5 deviations)
    counts = [givers.count(pair) for pair in itertools.product((1, 5), repeat=2)]
    assert max(abs(count - 100) for count in counts) < 5 * math.sqrt(400 * 0.25 * 0.75)
    rates = {turn.values["optimizer.lr"] for pair in turns for turn in pair}
    assert len(rates) > 100  # the resampled ones, of a quarter of 800


def test_values_depend_on_the_seed_of_the_sweep() -> None:
    stand = population(0.1, 0.9)
    asked = [search(resample=1.0).model_copy(update={"seed": seed}) for seed in (0, 0, 1)]
    same, again, other = (judge(each, stand, 2)[-1].values for each in asked)
    assert same == again != other


def test_who_diverged_is_the_worst() -> None:
    turns = judge(search(), population(-math.inf, 0.1, 0.2, 0.3), 2)
    assert turns[-1].trial.number == 0
    assert turns[-1].source is not None
    assert turns[-1].source.number == 3


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [0.5] * 9])
def test_nobody_takes_from_one_that_is_no_better(values: list[float]) -> None:
    assert all(turn.source is None for turn in judge(search(), population(*values), 2))


def test_of_two_one_takes_from_the_other() -> None:
    best, worst = judge(search(), population(0.2, 0.4), 2)
    assert (best.trial.number, best.source) == (1, None)
    assert worst.source == best.trial


def test_values_that_do_not_go_together_are_tried_no_longer_than_needed() -> None:
    stand = population(0.1, 0.9)
    free = judge(search(), stand, 2)[-1]
    forbidden = [free.values]
    turn = judge(search(), stand, 2, lambda values: values not in forbidden)[-1]
    assert turn.values not in forbidden
    kept = judge(search(), stand, 2, lambda values: False)[-1]
    assert kept.values == stand[1].values | {"seed": 0}


def test_without_resampling_values_lie_one_factor_away() -> None:
    asked, source = search(resample=0.0), standing(1, 0.9).values
    seen = [explored(asked, {"seed": 7}, source, random.Random(seed)) for seed in range(50)]
    assert {found["optimizer.lr"] for found in seen} == {0.08, 0.12}
    assert {found["optimizer.momentum"] for found in seen} == {0.6, 0.8}
    for found in seen:
        assert found["seed"] == 7
        assert found["schedule"] == {"name": "step", "milestones": [3]}, "cosine's neighbour"
        assert 0.1 <= found["schedule.factor"] <= 1.0, "drawn, as its condition holds now"
    inner = Dimension(choice=[1, 2, 4, 8])
    assert {perturbed(inner, 4, (2.0,), random.Random(seed)) for seed in range(20)} == {2, 8}


def test_with_resampling_alone_values_are_drawn() -> None:
    asked, source = search(resample=1.0), standing(1, 0.9).values
    found = [explored(asked, {}, source, random.Random(seed)) for seed in range(60)]
    assert len({values["optimizer.lr"] for values in found}) > 50
    assert {str(values["schedule"]) for values in found} == {str(v) for v in SCHEDULES}
    assert all(("schedule.factor" in v) == isinstance(v["schedule"], dict) for v in found)
    assert not any("seed" in values for values in found)


SCHEDULES = SPACE["schedule"]["choice"]


@given(
    st.sampled_from(
        [
            {"uniform": [-2.0, 3.0]},
            {"loguniform": [0.001, 1.0]},
            {"quniform": [0.0, 1.0, 0.25]},
            {"randint": [1, 20]},
            {"choice": [1, 2, 4, 8]},
            {"grid": ["a", "b"]},
        ]
    ),
    st.integers(0, 10_000),
    st.sampled_from([(0.8, 1.2), (0.5,), (2.0,)]),
)
def test_a_value_nearby_is_one_that_could_be_drawn(
    given: dict[str, Any], seed: int, factors: tuple[float, ...]
) -> None:
    dimension, chance = Dimension.model_validate(given), random.Random(seed)
    value = draw(dimension, chance)
    found = perturbed(dimension, value, factors, chance)
    match dimension.kind:
        case "uniform" | "loguniform":
            low, high = dimension.arguments
            assert low <= found <= high
            wanted = [min(max(value * factor, low), high) for factor in factors]
            assert min(abs(found - each) for each in wanted) < 1e-5 * max(1.0, abs(found))
        case "quniform":
            assert found in dimension.steps()
        case "randint":
            assert isinstance(found, int)
            assert found in range(1, 20)
            assert found != value or value in (1, 19)
        case _:
            listed = dimension.arguments
            assert abs(listed.index(found) - listed.index(value)) == 1


def test_a_normal_distribution_has_no_bounds() -> None:
    found = perturbed(Dimension(normal=[0.0, 1.0]), 3.0, (2.0,), random.Random(0))
    assert found == 6.0
    steps = Dimension(qrandn=[0.0, 1.0, 0.25])
    assert perturbed(steps, 1.0, (1.2,), random.Random(0)) == 1.25
    whole = Dimension(randint=[1, 20])  # the nearest one beyond 2, not 2 itself
    assert perturbed(whole, 2, (1.2,), random.Random(0)) == 3


@pytest.mark.parametrize(
    ("given", "value", "factor", "expected"),
    [
        ({"qrandn": [0.1, 0.05, 0.05]}, 0.1, 1.2, 0.15),
        ({"qrandn": [0.1, 0.05, 0.05]}, 0.1, 0.8, 0.05),
        ({"qrandn": [0.1, 0.05, 0.05]}, 0.1, 2.5, 0.25),
        ({"qrandn": [0.0, 1.0, 0.5]}, 0.0, 1.2, 0.5),
        ({"quniform": [0.0, 0.2, 0.1]}, 0.0, 1.2, 0.1),
        ({"quniform": [0.0, 0.2, 0.1]}, 0.0, 0.8, 0.0),
        ({"quniform": [0.0, 0.2, 0.1]}, 0.1, 1.0, 0.1),
        ({"randint": [0, 5]}, 0, 1.2, 1),
        ({"uniform": [0.0, 0.2]}, 0.0, 1.2, 0.0),
    ],
)
def test_a_quantised_value_changes_by_a_step_or_more_unless_it_is_at_the_end_of_its_range(
    given: dict[str, Any], value: float, factor: float, expected: float
) -> None:
    dimension = Dimension.model_validate(given)
    assert perturbed(dimension, value, (factor,), random.Random(0)) == expected


def test_a_value_that_is_not_listed_is_drawn_and_one_listed_alone_stays() -> None:
    listed, chance = Dimension(choice=["a", "b"]), random.Random(0)
    assert {perturbed(listed, "gone", (1.2,), chance) for _ in range(20)} == {"a", "b"}
    assert perturbed(Dimension(choice=["a"]), "a", (1.2,), chance) == "a"


def test_the_plan_of_a_trial_that_changed_is_the_same_run() -> None:
    data = {
        "name": "unit",
        "data": {"name": "digits"},
        "model": {"name": "tests.tiny_model:Tiny"},
        "training": {"epochs": 9, "global_batch": 64},
        "resources": {"device": "cpu"},
        "optimizer": {"lr_reference_batch": 32},
    }
    document = Document(data, "sweep.yaml")
    plan = trial_plan(document, {"optimizer.lr": 0.1, "seed": 4}, 3, 0)
    found = with_values(document, plan, {"optimizer.lr": 0.05, "seed": 4})
    assert (found.run_id, found.index, found.seed) == (plan.run_id, 3, 4)
    assert found.peak_lr == pytest.approx(0.1)
    assert found == trial_plan(document, {"optimizer.lr": 0.05, "seed": 4}, 3, 0).model_copy(
        update={"run_id": plan.run_id}
    )
