"""Predictions beside measurements, by hand."""

from __future__ import annotations

import pytest

from raysuite.records.predicted import Interval
from raysuite.report.predictions import _error, interval


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (100.0, "+10.0%"),
        (121.0, "-9.1%"),
        (122.0, "-9.8% (outside)"),
        (88.0, "+25.0% (outside)"),
        (None, "–"),
    ],
)
def test_the_error_is_of_the_prediction_as_a_part_of_the_measurement(
    measured: float | None, told: str
) -> None:
    assert _error(Interval(110.0, 100.0, 121.0), measured) == told
    assert _error(None, measured) == "–"


def test_an_interval_is_from_low_to_high() -> None:
    assert interval(Interval(12.0, 11.0, 13.5), "{:.1f}".format) == "12.0 [11.0, 13.5]"
    assert interval(None) == "–"
