"""The order in which loaders are timed, and the two limits beside them."""

from __future__ import annotations

import itertools

from raysuite.data import prepare
from raysuite.orchestrate.loader_timings import decoding_limit, reading_limit, turn
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS


def test_no_subject_always_follows_the_same_other():
    orders = [turn("abc", repeat) for repeat in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert {order[0] for order in orders} == {"a", "b", "c"}
    followed = {pair for order in orders for pair in itertools.pairwise(order)}
    assert len(followed) == 6


def test_the_limits_deliver_what_they_are_asked_for(tmp_path):
    digits = prepare(DataOptions(name="digits", format="tfrecord"), DIGITS, tmp_path)
    subjects = {
        "decoding": decoding_limit(digits, 2, 40, "train"),
        "reading": reading_limit(digits, 2, "train"),
    }
    delivered = {
        name: [each.run(50, epoch) for epoch in range(3)] for name, each in subjects.items()
    }
    for subject in subjects.values():
        subject.close()
    assert delivered == {"decoding": [50] * 3, "reading": [50] * 3}
