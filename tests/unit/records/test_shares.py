"""Shares of one run and of its repeats, from seconds that are known."""

from __future__ import annotations

import pytest

from raysuite.records import TimeShares
from raysuite.records.derive import run_shares


def record(**changes: object) -> TimeShares:
    values: dict[str, object] = {
        "run_id": "a",
        "steps": 5,
        "warmup_steps": 3,
        "window_seconds": [10.0, 8.0],
        "computation_seconds": [5.0, 4.0],
        "communication_seconds": [4.0, 2.0],
        "communication_exposed_seconds": [3.0, 1.6],
        "data_seconds": [1.5, 2.0],
        "data_exposed_seconds": [1.0, 2.0],
        "seconds": 20.0,
    }
    return TimeShares.model_validate({**values, **changes})


def test_parts_of_each_workers_own_window() -> None:
    shares = run_shares(record())
    assert shares is not None
    assert shares.computation == pytest.approx([0.5, 0.5])
    assert shares.communication == pytest.approx([0.4, 0.25])
    assert shares.communication_exposed == pytest.approx([0.3, 0.2])
    assert shares.data == pytest.approx([0.15, 0.25])
    assert shares.data_exposed == pytest.approx([0.1, 0.25])
    assert shares.other == pytest.approx([0.1, 0.05])


def test_a_short_window_is_one_and_an_empty_one_is_none() -> None:
    """Of parts that overlap, nothing is left over."""
    shares = run_shares(record(window_seconds=[0.5, 1.0], computation_seconds=[0.25, 1.0]))
    assert shares is not None
    assert (shares.computation, shares.communication) == ([0.5, 1], [8, 2])
    assert shares.other == [0, 0]
    assert run_shares(record(window_seconds=[0.0, 8.0])) is None


def test_the_slowest_worker_waits_least_for_the_others() -> None:
    shares = run_shares(record())
    assert shares is not None
    assert shares.slowest == 1


def test_nothing_was_profiled() -> None:
    assert run_shares(None) is None
    unseen = record(window_seconds=[], message="no kernels")
    assert run_shares(unseen) is None
    assert unseen.words == "no kernels"


def test_in_words() -> None:
    words = (
        "computation 50%, exposed communication 26%, exposed loading 17% of 5 steps; "
        "the profile took 20.0 s"
    )
    assert record().words == words
    assert record(message="no trace: the disk is full").words == (
        f"{words}; no trace: the disk is full"
    )
