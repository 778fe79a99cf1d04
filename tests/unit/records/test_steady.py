"""Repeats that lie apart, and runs that had not settled."""

from __future__ import annotations

import pytest

from raysuite.records import EpochFinished
from raysuite.records.steady import late_settling, outliers


def epochs(*speeds: float) -> list[EpochFinished]:
    return [
        EpochFinished(
            run_id="a",
            epoch=number,
            first_step=10 * number,
            losses=[1.0] * 10,
            learning_rates=[0.1] * 10,
            images=640,
            seconds=640 / speed,
            steady_images=640,
            steady_seconds=640 / speed,
            data_wait_seconds=[0.0],
            validation_seconds=0.1,
            train_loss=1.0,
            val_loss=1.0,
            val_accuracy=0.5,
            elapsed_seconds=1.0,
        )
        for number, speed in enumerate(speeds)
    ]


def test_one_far_value_among_five_is_named() -> None:
    assert outliers([100.0, 101.0, 99.0, 100.5, 60.0]) == (4,)
    assert outliers([100.0, 101.0, 99.0, 100.5, 98.5]) == ()


def test_the_score_is_the_published_one() -> None:
    # median 3, MAD 1: 0.6745 * 5.2 = 3.507 is above 3.5, 0.6745 * 5.1 = 3.44 is not
    assert outliers([1.0, 2.0, 3.0, 4.0, 8.2]) == (4,)
    assert outliers([1.0, 2.0, 3.0, 4.0, 8.1]) == ()


def test_of_three_repeats_none_lies_apart() -> None:
    assert outliers([1.0, 1.0, 900.0]) == ()
    assert outliers([5.0, 5.0, 5.0, 900.0]) == ()  # no spread to measure by


def test_a_slow_first_epoch_is_told() -> None:
    assert late_settling(epochs(50, 100, 104, 98)) == pytest.approx(0.5)


def test_a_first_epoch_within_the_spread_of_the_others_is_steady() -> None:
    assert late_settling(epochs(93, 100, 104, 98)) is None
    assert late_settling(epochs(50, 100, 104)) is None
    assert late_settling([]) is None
