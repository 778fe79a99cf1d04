"""Figures as a person reads them."""

from __future__ import annotations

import math

import pytest

from raysuite.records import Ratio, summarize
from raysuite.records.statistics import accuracy
from raysuite.report import text


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.1234, "0.123"),
        (4.567, "4.57"),
        (78.91, "78.9"),
        (1234.6, "1,235"),
        (0, "0"),
        (1.24e12, "1.2e+12"),
        (math.inf, "∞"),
    ],
)
def test_number(value, written):
    assert text.number(value) == written


def test_stat():
    assert text.stat(summarize([1000.0, 1010.0, 1020.0])) == "1,010 [985, 1,035]"
    assert text.stat(summarize([0.9, 0.92], "share"), text.percent) == "91.0 [68.2, 97.9] %"
    assert text.stat(summarize([12.0])) == "12.0 (n = 1)"
    assert text.stat(None) == "–"
    assert text.stat(summarize([3000.0, 9300.0])) == "6,150 (n = 2: 3,000 to 9,300)"
    assert text.stat(accuracy([0.125], 8), text.percent) == "12.5 [2.2, 47.1] % (n = 1)"
    assert text.stat(summarize([6.3, 6.1, 6.4]), text.seconds) == "6.27 [5.90, 6.66] s"
    assert text.stat(summarize([120.0, 121.0]), text.seconds) == (
        "2 min 00 s [1 min 54 s, 2 min 07 s]"
    )


def test_ratio():
    assert text.ratio(Ratio(1.874, 1.8, 1.95)) == "1.87 [1.80, 1.95]"
    assert text.ratio(Ratio(1.874, None, None)) == "1.87"
    assert text.ratio(Ratio(0.00091, 0.0008, 0.00102)) == "0.00091 [0.0008, 0.001]"
    assert text.ratio(None) == "–"
    assert text.ratio(Ratio(0.89, 0.0, 16787.57)) == "0.89 (repeats differ too much)"
    assert text.ratio(Ratio(0.5, 0.1, 5.0)) == "0.50 [0.10, 5.00]"


def test_options_that_all_names_of_a_block_have_are_left_out():
    cut = text.without_shared_options
    names = ["ddp", *(f"pipeline(schedule={s}, stages=2) · native" for s in ("gpipe", "1f1b"))]
    assert list(cut(names).values()) == [
        "ddp",
        "pipeline(schedule=gpipe) · native",
        "pipeline(schedule=1f1b) · native",
    ]
    several = ["pipeline(stages=2) · native", "pipeline(stages=2) · dali"]
    assert list(cut(several).values()) == ["pipeline · native", "pipeline · dali"]
    for kept in (
        ["ddp", "pipeline(stages=2)"],
        ["ddp", "ddp(bucket_mb=1)"],
        ["a(b=1)", "a(b=1) · c", "a", "a · c"],
    ):
        assert list(cut(kept).values()) == kept


def test_a_name_breaks_between_its_parts_and_options():
    said = text.tied("pipeline(stages=2, balance=time) · 2 workers")
    assert said.split(" ") == ["pipeline(stages=2,", "balance=time)\u00a0·", "2\u00a0workers"]


def test_listed():
    assert text.listed(["a"]) == "a"
    assert text.listed(["a", "b"]) == "a and b"
    assert text.listed(["a", "b", "c"]) == "a, b and c"
    assert text.listed(list("abcdefg")) == "a, b, c and 4 more"
    assert text.listed(list("abcd")) == "a, b, c and d"
    assert text.listed(list("abcd"), 3) == "a, b and 2 more"
    assert text.listed([]) == ""


@pytest.mark.parametrize(
    ("unit", "values", "written"),
    [
        ("s", [0.004, 0.012, 2.0], ["4.00 ms", "12.0 ms", "2,000 ms"]),
        ("s", [0.8, 12.0, None, 95.0], ["0.800 s", "12.0 s", "95.0 s"]),
        ("s", [5400.0, 3000.0], ["90.0 min", "50.0 min"]),
        ("s", [46800.0], ["13.0 h"]),
        ("bytes", [300 * 2**20, 700 * 2**20, 3 * 2**30], ["300 MiB", "700 MiB", "3,072 MiB"]),
        ("bytes", [0, 2**31], ["0 GiB", "2.00 GiB"]),
        ("FLOP/s", [2e9], ["2.00 GFLOP/s"]),
        ("share", [0.5], ["50.0 %"]),
        ("", [], []),
    ],
)
def test_a_column_has_one_unit(unit, values, written):
    write = text.writer(unit, values)
    assert [write(value) for value in values if value is not None] == written


def test_an_interval_has_the_decimals_of_its_mean_in_every_unit():
    write = text.writer("s", [0.0098])
    assert text.stat(summarize([0.0097, 0.0098, 0.0102]), write) == "9.90 [9.26, 10.58] ms"


@pytest.mark.parametrize(
    ("unit", "values", "written"),
    [
        ("s", [0.5], ["500 ms"]),
        ("s", [1.0, 0.5, 599.0], ["1.00 s", "0.500 s", "599 s"]),
        ("s", [600.0], ["10.0 min"]),
        ("s", [7199.0], ["120 min"]),
        ("s", [7200.0, None], ["2.00 h"]),
        ("s", [60.0, 7200.0, 7200.0], ["0.017 h", "2.00 h", "2.00 h"]),  # by the median
        ("s", [0.0, 0.0, 7200.0], ["0 ms", "0 ms", "7,200,000 ms"]),
        ("bytes", [1023.0], ["1,023 B"]),
        ("bytes", [1024.0, 1024.0**2], ["0.001 MiB", "1.00 MiB"]),
        ("bytes", [1024.0**3], ["1.00 GiB"]),
        ("FLOP/s", [999.0], ["999 FLOP/s"]),
        ("FLOP/s", [2e15], ["2.00 PFLOP/s"]),
        ("B/s", [-2e9], ["-2.00 GB/s"]),
        ("share", [0.5], ["50.0 %"]),
        ("", [1500.0], ["1,500"]),
    ],
)
def test_a_column_has_the_multiple_of_its_unit_that_suits_its_median(unit, values, written):
    write = text.writer(unit, values)
    assert [write(each) for each in values if each is not None] == written


def test_seconds_from_a_minute_on_are_minutes():
    assert [text.seconds(each) for each in (59.9, 60.0, 0.5)] == ["59.9 s", "1 min 00 s", "0.500 s"]


def test_a_figure_breaks_before_its_interval_or_its_n_alone():
    cells = {
        "1.2 [1.1, 1.3] s": ["1.2", "[1.1,\u00a01.3]\u00a0s"],
        "6,150 (n = 2: 3 to 9)": ["6,150", "(n", "=", "2:", "3\u00a0to", "9)"],
        "12.0 (n = 1)": ["12.0", "(n\u00a0=\u00a01)"],
        "2 min 05 s": ["2\u00a0min", "05\u00a0s"],
        "met by 1 of 3": ["met", "by", "1\u00a0of", "3"],
    }
    assert {cell: text.paired(cell).split(" ") for cell in cells} == cells
