"""Intervals against published tables and against simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.records.statistics import ratio_of_means, summarize, t_quantile


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042)])
def test_t_quantile_agrees_with_printed_tables(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)


def test_interval_of_three_repeats():
    stat = summarize([9.0, 10.0, 11.0])
    assert stat is not None
    assert stat.mean == 10.0
    assert stat.half_width == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)


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
