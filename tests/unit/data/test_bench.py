"""Timing of loaders: what is counted, and in which order."""

from __future__ import annotations

import itertools

import pytest
import torch

from raysuite.data.bench import (
    DecodingLimit,
    LoaderSubject,
    Rate,
    ReadingLimit,
    rounds,
    timed,
    turn,
)
from raysuite.spec.loaders import NativeOptions

CPU = torch.device("cpu")


def test_a_rate_is_images_over_wall_clock():
    rate = Rate(images=300, seconds=2.0, cpu_s=3.0)
    assert rate.images_per_s == 150
    assert rate.cpu_ms_per_image == 10


def test_no_subject_always_follows_the_same_other():
    orders = [turn("abc", repeat) for repeat in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert {order[0] for order in orders} == {"a", "b", "c"}
    followed = {pair for order in orders for pair in itertools.pairwise(order)}
    assert len(followed) == 6


@pytest.mark.parametrize("images", [20, 64, 100])
def test_whole_batches_are_loaded_and_counted(digits, images):
    subject = LoaderSubject(digits, NativeOptions(threads=1), 32, CPU)
    rate = timed(subject, images, 1)
    subject.close()
    assert rate.images == -(-images // 32) * 32
    assert rate.seconds > 0
    assert rate.cpu_s > 0


def test_the_limits_deliver_what_they_are_asked_for(digits):
    subjects = {
        "decoding": DecodingLimit(digits, 2, 40, "train"),
        "reading": ReadingLimit(digits, 2, "train"),
    }
    heard = []
    rates = rounds(subjects, 3, 50, lambda name, repeat, rate: heard.append((repeat, name)))
    for subject in subjects.values():
        subject.close()
    assert {name: [rate.images for rate in each] for name, each in rates.items()} == {
        "decoding": [50] * 3,
        "reading": [50] * 3,
    }
    assert sorted(heard) == [(repeat, name) for repeat in range(3) for name in sorted(subjects)]
