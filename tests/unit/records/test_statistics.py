"""Intervals against published tables and against simulation."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raysuite.records.statistics import (
    Ratio,
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
    wilson,
)


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
    ratio = ratio_of_means(three, one)
    assert (ratio.value, ratio.low) == (0.1, None)


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
    thousandths = [[each / 1000 for each in values] for values in (above, below)]
    tiny = fieller(*map(summarize, thousandths))  # the same in another unit
    assert (tiny.low, tiny.high) == (pytest.approx(ratio.low), pytest.approx(ratio.high))


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


@pytest.mark.parametrize(
    ("values", "scale"),
    [([6.0, 0.5], "positive"), ([9.0, 10.0, 12.0], "positive"), ([0.3, 0.5, 0.45], "share")],
)
def test_an_interval_is_students_on_a_scale_with_possible_ends(values, scale):
    found = summarize([None, *values], scale, [(n, 0.0) for n in range(len(values) + 1)])
    mean, n = np.mean(values), len(values)
    half = stats.t.ppf(0.975, n - 1) * stats.sem(values)
    assert (found.n, found.mean, found.half_width) == (n, pytest.approx(mean), pytest.approx(half))
    assert [key for key, _ in found.rounds] == list(range(1, n + 1))
    if scale == "positive":  # of log(mean), whose derivative is 1 / mean
        low, high = (mean * math.exp(sign * half / mean) for sign in (-1, 1))
    else:  # of the logit, whose derivative is 1 / (p (1 - p))
        logit, reach = math.log(mean / (1 - mean)), half / (mean * (1 - mean))
        low, high = (1 / (1 + math.exp(-(logit + sign * reach))) for sign in (-1, 1))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (summarize(values) == summarize(values, scale)) == (scale == "positive")


@pytest.mark.parametrize(
    ("values", "scale"),
    [([0.0, 0.0], "share"), ([1.0, 1.0], "share"), ([-1.0, 1.0], "positive")],
)
def test_a_mean_at_an_end_of_its_scale_has_a_plain_interval(values, scale):
    found = summarize(values, scale)
    assert found.high - found.mean == found.mean - found.low == found.half_width


def test_repeats_without_spread_have_an_interval_without_width():
    ratio = ratio_of_means(summarize([3.0, 3.0]), summarize([2.0, 2.0]))
    assert ratio == Ratio(1.5, 1.5, 1.5)
    assert ratio.differs_from_one


def test_a_ratio_is_scaled_with_its_interval():
    assert Ratio(2.0, 1.0, 5.0).scaled(0.5) == Ratio(1.0, 0.5, 2.5)
    assert Ratio(2.0, None, None).scaled(0.5) == Ratio(1.0, None, None)


def test_no_end_of_an_interval_of_a_share_is_beyond_all_or_none():
    """Also by no rounding: without bounds, one in six of these ends would be."""
    for n in range(1, 400):
        (_, high), (low, _) = wilson(1.0, n), wilson(0.0, n)
        assert (low, high) == pytest.approx((0.0, 1.0))
        assert 0 <= low <= high <= 1


def test_a_mean_of_zero_has_no_ratio():
    zero, one = summarize([0.0, 0.0]), summarize([1.0, 2.0])
    assert ratio_of_means(zero, one) is ratio_of_means(one, zero) is None
    assert ratio_of_means(one, summarize([-1.0])) is None


def test_an_accuracy_adds_both_spreads_in_squares():
    values = [0.60, 0.62, 0.64]
    ends = stats.binomtest(620, 1000).proportion_ci(method="wilson")
    own = stats.t.ppf(0.975, 2) * stats.sem(values)
    found = accuracy(values, 1000)
    assert found.low == pytest.approx(0.62 - math.hypot(0.62 - ends.low, own))
    assert found.high == pytest.approx(0.62 + math.hypot(ends.high - 0.62, own))
    wide = accuracy([0.01, 0.99], 10)
    assert (wide.low, wide.high) == (0.0, 1.0)


def test_an_accuracy_holds_seeds_and_images():
    alone = stats.binomtest(1, 8).proportion_ci(method="wilson")
    one = accuracy([0.125], 8)
    assert (one.low, one.high) == pytest.approx((alone.low, alone.high))
    two = accuracy([0.125, 0.125], 8)
    assert (two.low, two.high) == pytest.approx((alone.low, alone.high))
    apart = accuracy([0.0, 0.25], 8)
    assert apart.low < two.low
    assert apart.high > two.high


EXAMPLE = ((56, 70), (48, 80))


def test_a_difference_of_shares_is_newcombes():
    # Newcombe 1998, Statistics in Medicine 17:873, table II, example (a), method 10
    low, high = difference_of_shares(56 / 70, 48 / 80, 70, 80)
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    (low_a, high_a), (low_b, high_b) = (
        stats.binomtest(*counts).proportion_ci(0.99, method="wilson") for counts in EXAMPLE
    )
    above, below = 56 / 70, 48 / 80
    wider = difference_of_shares(above, below, 70, 80, 0.99)
    reach = math.hypot(above - low_a, high_b - below), math.hypot(high_a - above, below - low_b)
    assert wider == pytest.approx((above - below - reach[0], above - below + reach[1]))


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
    assert not are_blocks([in_rounds(five), in_rounds([*five, 6.0], 50.0)])
    assert are_blocks([in_rounds(five[::-1]), in_rounds(five, 50.0)])


def test_two_independent_samples_are_welchs():
    above, below = [105.0, 110.0, 98.0, 101.0], [50.0, 53.0, 51.5]
    relative = [np.array(each) / np.mean(each) for each in (above, below)]
    test = stats.ttest_ind(*relative, equal_var=False)
    ratio = ratio_of_means(summarize(above), summarize(below))
    assert ratio.value == pytest.approx(np.mean(above) / np.mean(below))
    ends = test.confidence_interval(0.95)
    assert math.log(ratio.high / ratio.value) == pytest.approx((ends.high - ends.low) / 2)
    assert math.log(ratio.value / ratio.low) == pytest.approx((ends.high - ends.low) / 2)


@pytest.mark.parametrize("paired", [False, True])
def test_of_three_the_larger_of_own_and_pooled_variance_counts(paired):
    """Written out for each pair, with Bonferroni's level of three two-sided intervals."""
    calm, wild = [1.0, 1.01, 0.99, 1.0, 1.005], [2.0, 3.0, 1.0, 2.6, 1.4]
    variants = [calm, [3.0, 2.97, 3.03, 3.0, 2.985], wild]
    if not paired:
        variants[1] = variants[1][:3]
    relative = [np.array(each) / np.mean(each) - 1 for each in variants]
    counts = [len(each) for each in variants]
    if paired:
        residuals = np.array(relative) - np.mean(relative, 0)
        freedom = 2 * 4
        values = np.array(variants)
        ratios, reaches = log_ratios(values, True, 0.9)
    else:
        residuals = np.concatenate(relative)
        freedom = sum(counts) - 3
        ratios, reaches = compared([summarize(each) for each in variants], 0.9)
    pooled = (residuals**2).sum() / freedom
    t = stats.t.ppf(1 - 0.1 / 6, freedom)
    for i, j in itertools.permutations(range(3), 2):
        if paired:
            own = np.var(relative[i] - relative[j], ddof=1) / 5
        else:
            own = sum(np.var(relative[k], ddof=1) / counts[k] for k in (i, j))
        variance = max(own, pooled * (1 / counts[i] + 1 / counts[j]))
        assert reaches[i, j] == pytest.approx(t * math.sqrt(variance))
        assert ratios[i, j] == pytest.approx(math.log(np.mean(variants[i]) / np.mean(variants[j])))


def test_wrong_claims_are_as_rare_as_stated():
    """The whole table: benchmarks/simulated_statistics.py."""
    chance = np.random.default_rng(3)
    for n, paired in ((3, False), (5, True)):
        values = np.exp(0.1 * chance.normal(size=(1000, 1, n)) * paired)
        values = values * np.exp(0.02 * chance.normal(size=(1000, 6, n)))
        ratios, reaches = log_ratios(values, paired)
        assert (ratios - reaches > 0).any((-1, -2)).mean() <= 0.05


def test_an_outlier_is_grubbs():
    assert outlying(np.array([100.0, 101.0, 99.0, 100.5, 60.0]), 0.95).tolist() == [
        *[False] * 4,
        True,
    ]
    assert not outlying(np.array([100.0, 101.0, 99.0, 100.5, 98.5]), 0.95).any()
    few = outlying(np.array([1.0, 1.0, 900.0]), 0.95)
    assert (few.dtype, few.any()) == (bool, False)
    assert not outlying(np.full(5, 7.0), 0.95).any()
    # the printed critical values of 5 %, two-sided, of five and ten (Grubbs and Beck 1972, table I)
    for rest, critical, near in (
        ([1.0, 2.0, 3.0, 4.0], 1.715, (10.5, 11.0)),
        ([-1.0, 1.0] * 4 + [0.0], 2.290, (4.0, 4.1)),
    ):
        for last, apart in zip(near, (False, True), strict=True):
            values = np.array([*rest, last])
            assert (last - values.mean() > critical * values.std(ddof=1)) == apart
            assert outlying(values, 0.95).any() == apart


@pytest.mark.parametrize("runs", [1, 2])
def test_a_slow_first_epoch_is_beyond_a_prediction_interval(runs):
    """Of one run that of a normal sample; of several the mean, with the variance within runs."""
    later = [[100.0, 104.0, 98.0, 101.0], [60.0, 61.0, 59.0]][:runs]
    logs = [np.log(each) for each in later]
    freedom = sum(len(each) - 1 for each in logs)
    variance = sum(((each - each.mean()) ** 2).sum() for each in logs) / freedom
    error = math.sqrt(variance * sum(1 + 1 / len(each) for each in logs)) / runs
    bound = stats.t.ppf(0.95, freedom) * error
    for times, slow in ((0.99, False), (1.01, True)):
        speeds = np.full((runs, 5), np.nan)
        for run, each in enumerate(logs):
            speeds[run, 0] = math.exp(each.mean() - bound * times)
            speeds[run, 1 : 1 + len(each)] = later[run]
        found, share = slow_start(speeds, 0.95)
        assert (bool(found), share) == (slow, pytest.approx(1 - math.exp(-bound * times)))


def test_the_level_of_caveats_is_bonferronis_over_two_kinds_and_all_rows():
    assert caveat_level(0) == caveat_level(1) == 1 - 0.05 / 2
    assert caveat_level(12) == 1 - 0.05 / 24


def test_caveats_of_noise_are_as_rare_as_stated():
    """Of twelve variants alike; the whole table: benchmarks/simulated_statistics.py."""
    chance, level = np.random.default_rng(4), caveat_level(12)
    values = np.exp(0.02 * chance.normal(size=(2000, 12, 5)))
    speeds = np.exp(0.02 * chance.normal(size=(2000, 12, 5, 6)))
    for found in (outlying(values, level).any((-1, -2)), slow_start(speeds, level)[0].any(-1)):
        assert 0.01 < found.mean() < 0.04  # 2.5 % each
