"""The order in which loaders are timed, and the two limits beside them."""

from __future__ import annotations

import itertools

import pytest

from raysuite.data import prepare
from raysuite.orchestrate import loader_timings
from raysuite.orchestrate.loader_timings import _excused, decoding_limit, reading_limit, turn
from raysuite.plan.loading import candidates
from raysuite.records.loader_rates import Material
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


def test_what_holds_all_pixels_is_tried_where_they_fit_or_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten images of 7 bytes, which are 100 bytes of pixels each."""
    material = Material(
        samples=10,
        image_bytes=7.0,
        pixel_bytes=100.0,
        jpeg_share=1.0,
        encoded=True,
        augment="none",
        read_before=True,
    )
    subjects = candidates([{"name": "native"}, {"name": "memory"}], [1], [])

    def excuses(most: int, named: bool = False, **found: bool) -> dict[str, str]:
        monkeypatch.setattr(loader_timings, "MOST_DECODED", most)
        seen = [_excused(each, material.model_copy(update=found), named) for each in subjects]
        return {each.series: each.excuse for each in seen if each.excuse}

    assert excuses(1000) == excuses(999, named=True) == {}
    [(name, excuse)] = excuses(999).items()
    assert name.startswith("memory")
    assert "about 1000 B" in excuse
    assert [*excuses(1000, encoded=False).values()] == ["the files hold bare pixels"]
