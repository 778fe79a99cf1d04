"""Figures as a person reads them."""

from __future__ import annotations

import pytest

from raysuite.records import Ratio, summarize
from raysuite.records.statistics import accuracy
from raysuite.report import text


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.1234, "0.123"), (4.567, "4.57"), (78.91, "78.9"), (1234.6, "1,235"), (0, "0.000")],
)
def test_number(value, written):
    assert text.number(value) == written


def test_stat():
    assert text.stat(summarize([1000.0, 1010.0, 1020.0])) == "1,010 [985, 1,035]"
    assert text.stat(summarize([0.9, 0.92], "share"), text.percent) == "91.0 [68.2, 97.9] %"
    assert text.stat(summarize([12.0])) == "12.0 (n = 1)"
    assert text.stat(None) == "–"
    assert text.stat(accuracy([0.125], 8), text.percent) == "12.5 [2.2, 47.1] % (n = 1)"
    assert text.stat(summarize([6.3, 6.1, 6.4]), text.seconds) == "6.27 [5.90, 6.66] s"
    assert text.stat(summarize([120.0, 121.0]), text.seconds) == (
        "2 min 00 s [1 min 54 s, 2 min 07 s]"
    )


def test_ratio():
    assert text.ratio(Ratio(1.874, 1.8, 1.95)) == "1.87 [1.80, 1.95]"
    assert text.ratio(Ratio(1.874, None, None)) == "1.87"
    assert text.ratio(None) == "–"


def test_listed():
    assert text.listed(["a"]) == "a"
    assert text.listed(["a", "b"]) == "a and b"
    assert text.listed(["a", "b", "c"]) == "a, b and c"
    assert text.listed(list("abcdefg")) == "a, b, c and 4 more"
