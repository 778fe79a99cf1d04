"""Intervals against published tables and against simulation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raysuite.records.statistics import (
    Stat,
    accuracy,
    are_blocks,
    caveat_level,
    compared,
    difference_of_shares,
    fieller,
    log_ratios,
    outlying,
    ratio_of_means,
    slow_start,
    summarize,
    t_quantile,
)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042)])
def test_t_quantile_agrees_with_printed_tables(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)


def test_one_repeat_has_no_interval_and_none_has_no_mean():
    one = summarize([3.0, None])
    assert one is not None
    assert (one.n, one.mean, one.half_width) == (1, 3.0, None)
    assert summarize([None]) is None


def test_ratio_with_one_repeat_shows_no_difference():
    one, three = summarize([100.0]), summarize([9.0, 10.0, 11.0])
    ratio = ratio_of_means(one, three)
    assert ratio.value == 10.0
    assert ratio.low is None
    assert not ratio.differs_from_one


def test_ratio_and_its_inverse_agree():
    left, right = summarize([9.0, 10.0, 11.5]), summarize([4.0, 5.0, 6.5, 5.5])
    there, back = ratio_of_means(left, right), ratio_of_means(right, left)
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)


@pytest.mark.parametrize("below", [[3.0, 4.0, 5.0, 3.5], [-1.0, 2.0, 3.0, 1.0]])
def test_fiellers_ends_are_t_standard_errors_from_zero(below):
    above = [20.0, 21.0, 22.5, 19.0]
    ratio = fieller(summarize(above), summarize(below))
    assert ratio.value == pytest.approx(sum(above) / sum(below))
    for end in filter(math.isfinite, (ratio.low, ratio.high)):
        apart = [a - end * b for a, b in zip(above, below, strict=True)]
        assert stats.ttest_1samp(apart, 0.0).pvalue == pytest.approx(0.05)
    assert ratio.low < ratio.value < ratio.high
    assert math.isinf(ratio.high) == (stats.ttest_1samp(below, 0.0).pvalue > 0.05)


def test_fieller_needs_a_lower_figure_above_zero():
    assert fieller(summarize([1.0, 2.0]), summarize([-1.0, 0.5])) is None
    assert fieller(summarize([4.0]), summarize([2.0])).low is None


def test_a_baseline_against_itself_is_one():
    stat = summarize([1.0, 2.0])
    ratio = ratio_of_means(stat, stat)
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 1.0, 1.0)
    assert not ratio.differs_from_one


def test_two_wild_repeats_give_an_open_interval():
    wild = summarize([1e-9, 1.0])
    ratio = ratio_of_means(wild, summarize([1.0, 1.0]), level=0.99999)
    assert (ratio.low, ratio.high) == (0.0, math.inf)


def test_interval_covers_the_truth_as_often_as_it_says():
    chance = random.Random(7)
    hits = 0
    for _ in range(1500):
        above = summarize([chance.gauss(200, 10) for _ in range(4)])
        below = summarize([chance.gauss(100, 3) for _ in range(4)])
        ratio = ratio_of_means(above, below)
        hits += ratio.low <= 2.0 <= ratio.high
    assert 0.93 <= hits / 1500 <= 0.98


@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=8), st.floats(0.1, 100))
def test_ratio_does_not_depend_on_the_unit(values, unit):
    base = summarize([1.0, 2.0, 3.0])
    plain = ratio_of_means(summarize(values), base)
    other = summarize([unit, 2 * unit, 3 * unit])
    scaled = ratio_of_means(summarize([value * unit for value in values]), other)
    assert scaled.value == pytest.approx(plain.value)
    assert scaled.low == pytest.approx(plain.low)


def in_rounds(values: list[float], late: float = 0.0) -> Stat:
    """A repeat every hundred seconds."""
    stat = summarize(values, rounds=[(n, 100.0 * n + late) for n in range(len(values))])
    assert stat is not None
    return stat


def test_intervals_have_possible_ends():
    wild = summarize([6.0, 0.5])
    assert 0 < wild.low < wild.mean < wild.high
    assert wild.half_width > wild.mean
    waits = summarize([0.02, 0.9], "share")
    assert 0 < waits.low < waits.mean < waits.high < 1


def test_an_accuracy_holds_seeds_and_images():
    alone = stats.binomtest(1, 8).proportion_ci(method="wilson")
    one = accuracy([0.125], 8)
    assert (one.low, one.high) == pytest.approx((alone.low, alone.high))
    two = accuracy([0.125, 0.125], 8)
    assert (two.low, two.high) == pytest.approx((alone.low, alone.high))
    apart = accuracy([0.0, 0.25], 8)
    assert apart.low < two.low
    assert apart.high > two.high


def test_a_difference_of_shares_is_newcombes():
    # Newcombe 1998, Statistics in Medicine 17:873, table II, example (a), method 10
    low, high = difference_of_shares(56 / 70, 48 / 80, 70, 80)
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_five_rounds_are_compared_round_by_round():
    drift = [1.0, 1.1, 0.9, 1.2, 0.8]
    base = [100.0 * d for d in drift]
    noise = [1.0, -1.0, 0.5, 0.0, -0.5]
    faster = [105 * d + e for d, e in zip(drift, noise, strict=True)]
    ratio = ratio_of_means(in_rounds(faster, 10.0), in_rounds(base))
    relative = [a / 105 - b / 100 for a, b in zip(faster, base, strict=True)]
    _, high = stats.t.interval(0.95, 4, scale=stats.sem(relative))
    assert math.log(ratio.high / ratio.value) == pytest.approx(high)
    assert ratio.differs_from_one
    assert not ratio_of_means(summarize(faster), summarize(base)).differs_from_one


def test_only_complete_rounds_in_turn_are_blocks():
    five = [float(n) for n in range(1, 6)]
    assert are_blocks([in_rounds(five), in_rounds(five, 50.0)])
    assert not are_blocks([in_rounds(five), in_rounds(five, 150.0)])  # run later
    assert not are_blocks([in_rounds(five), in_rounds([*five, 6.0])])
    assert not are_blocks([in_rounds(five[:4]), in_rounds(five[:4], 50.0)])
    assert not are_blocks([summarize(five), summarize(five)])


@pytest.mark.parametrize("paired", [False, True])
def test_of_more_than_two_the_larger_variance_counts(paired):
    calm = np.array([[1.0, 1.01, 0.99, 1.0, 1.005], [1.0, 0.99, 1.01, 1.0, 0.995]])
    wild = np.array([[1.0, 1.5, 0.5, 1.3, 0.7]])
    _, two = log_ratios(calm, paired)
    _, three = log_ratios(np.concatenate([calm, wild]), paired)
    assert two[0, 1] < three[0, 1] <= three[0, 2]


def test_wrong_claims_are_as_rare_as_stated():
    """The whole table: benchmarks/simulated_statistics.py."""
    chance = np.random.default_rng(3)
    for n, paired in ((3, False), (5, True)):
        values = np.exp(0.1 * chance.normal(size=(1000, 1, n)) * paired)
        values = values * np.exp(0.02 * chance.normal(size=(1000, 6, n)))
        ratios, reaches = log_ratios(values, paired)
        assert (ratios - reaches > 0).any((-1, -2)).mean() <= 0.05


def test_repeats_that_are_missing_do_not_count():
    variants = [summarize(values) for values in ([1.0, 1.1, 0.9], [1.0, 1.2], [2.0, 2.1, 2.2])]
    ratios, reaches = compared(variants)
    assert ratios[2, 0] == pytest.approx(math.log(2.1))
    assert np.allclose(reaches, reaches.T)
    assert reaches[0, 2] < reaches[0, 1]


def test_an_outlier_is_grubbs():
    assert outlying(np.array([100.0, 101.0, 99.0, 100.5, 60.0]), 0.95).tolist() == [
        *[False] * 4,
        True,
    ]
    assert not outlying(np.array([100.0, 101.0, 99.0, 100.5, 98.5]), 0.95).any()
    assert not outlying(np.array([1.0, 1.0, 900.0]), 0.95).any()
    assert not outlying(np.full(5, 7.0), 0.95).any()
    for last in (6.0, 7.0, 8.0, 20.0):
        values = np.array([1.0, 2.0, 3.0, 4.0, last])
        g = (last - values.mean()) / values.std(ddof=1)
        # the printed critical value of 5 %, two-sided, of five (Grubbs and Beck 1972, table I)
        assert outlying(values, 0.95).any() == (g > 1.715)


def test_a_slow_first_epoch_is_reported():
    slow, share = slow_start(np.array([[50.0, 100.0, 104.0, 98.0]]), 0.95)
    assert (bool(slow), share) == (True, pytest.approx(0.5, abs=0.01))
    assert not slow_start(np.array([[96.0, 100.0, 104.0, 98.0]]), 0.95)[0]
    # runs that differ in their number of epochs
    both = np.array([[50.0, 100.0, 104.0, 98.0], [52.0, 99.0, 101.0, np.nan]])
    assert slow_start(both, 0.95)[0]


def test_caveats_of_noise_are_as_rare_as_stated():
    """Of twelve variants alike; the whole table: benchmarks/simulated_statistics.py."""
    chance, level = np.random.default_rng(4), caveat_level(12)
    values = np.exp(0.02 * chance.normal(size=(2000, 12, 5)))
    speeds = np.exp(0.02 * chance.normal(size=(2000, 12, 5, 6)))
    for found in (outlying(values, level).any((-1, -2)), slow_start(speeds, level)[0].any(-1)):
        assert 0.01 < found.mean() < 0.04  # 2.5 % each
