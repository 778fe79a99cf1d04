"""Arithmetic done by hand, from journals to rows; and every interval against scipy."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from scipy import stats

from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, Record, make_rows, run_figures
from raysuite.records.statistics import ratio_of_means, summarize
from raysuite.spec import parse_document
from tests.fake_results import epoch, run_records

SPEC = """\
name: golden
model: resnet20
data: digits
strategy: ddp
training: {epochs: 3, global_batch: 64}
measure: {warmup_steps: 0}
resources: {device: cpu}
matrix: {resources.workers: [4, 8]}
"""
SECONDS = {4: (10.0, 8.0, 8.0), 8: (6.0, 4.0, 4.0)}
IMAGES = 1437


def rows():
    found = []
    for plan in make_plans(parse_document(SPEC, "golden.yaml"), gpus=0):
        epochs = [
            epoch(plan, number).model_copy(
                update={"seconds": s, "steady_seconds": s, "steady_images": IMAGES}
            )
            for number, s in enumerate(SECONDS[plan.workers])
        ]
        found.append(run_figures(plan.model_dump(mode="json"), with_epochs(plan, epochs)))
    return make_rows(found)


def with_epochs(plan: RunPlan, epochs: list[EpochFinished]) -> list[Record]:
    started, gate, *_, end = run_records(plan)
    return [started, gate, *epochs, end]


def test_epochs_speed_up_and_efficiency() -> None:
    four, eight = rows()
    assert four.epoch_seconds.mean == pytest.approx(8.667, abs=5e-4)
    assert eight.epoch_seconds.mean == pytest.approx(4.667, abs=5e-4)
    assert eight.speed_up.value == pytest.approx(1.857, abs=5e-4)
    assert eight.efficiency.value == pytest.approx(0.929, abs=5e-4)
    assert four.throughput.mean == pytest.approx(3 * IMAGES / 26)
    assert eight.baseline == four.name
    assert four.speed_up.value == four.efficiency.value == 1.0


def samples(mean: float, spread: float, count: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, spread) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_the_interval_of_a_mean_is_scipys(count: int) -> None:
    values = samples(100, 7, count, seed=count)
    found = summarize(values)
    low, high = stats.t.interval(0.95, count - 1, loc=stats.tmean(values), scale=stats.sem(values))
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx(
        (low, high)
    )


@pytest.mark.parametrize(("above", "below"), [(3, 3), (5, 4), (2, 20)])
def test_the_interval_of_a_ratio_is_welchs_on_the_delta_scale(above: int, below: int) -> None:
    """scipy's Welch interval of a difference, given the two means' relative standard errors."""
    x, y = samples(50, 3, above, seed=1), samples(20, 1, below, seed=2)
    found = ratio_of_means(summarize(x), summarize(y))
    relative_x = [value / stats.tmean(x) for value in x]
    relative_y = [value / stats.tmean(y) for value in y]
    welch = stats.ttest_ind(relative_x, relative_y, equal_var=False).confidence_interval(0.95)
    value = stats.tmean(x) / stats.tmean(y)
    assert found.value == pytest.approx(value)
    assert math.log(found.high / value) == pytest.approx(welch.high)
    assert math.log(found.low / value) == pytest.approx(welch.low)


def test_repeats_vary_slowest_so_that_a_drift_meets_all_alike(tmp_path: Path) -> None:
    plans = make_plans(parse_document(SPEC + "repeats: 3\n", "golden.yaml"), gpus=0)
    assert [(plan.repeat, plan.workers) for plan in plans] == [
        (repeat, workers)
        for repeat, order in enumerate([(4, 8), (8, 4), (8, 4)])
        for workers in order
    ]
    assert [plan.seed for plan in plans] == [0, 0, 1, 1, 2, 2]
