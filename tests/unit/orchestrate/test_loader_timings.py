"""The order in which loaders are timed, and the two limits beside them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from raysuite.data import Batch, Loader, Prepared, prepare
from raysuite.orchestrate import loader_timings
from raysuite.orchestrate.loader_timings import (
    Trial,
    _enough,
    _excused,
    inspect_split,
    timed,
    turn,
)
from raysuite.plan.loading import LoadingPlan, candidates
from raysuite.records.loader_rates import Material
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS
from tests import small_sets

DATA = DataOptions(name="digits", format="tfrecord")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(DATA, DIGITS, tmp_path_factory.mktemp("digits"))


def test_no_subject_always_follows_the_same_other():
    orders = [turn("abc", repeat) for repeat in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert {order[0] for order in orders} == {"a", "b", "c"}
    followed = {pair for order in orders for pair in itertools.pairwise(order)}
    assert len(followed) == 6


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


@pytest.mark.parametrize(
    ("most", "enough"),
    [(None, [(1, 2.9, False), (0, 3.0, True)]), (500, [(499, 9.0, False), (500, 0.1, True)])],
)
def test_a_timing_ends_after_its_images_or_else_after_its_seconds(
    most: int | None, enough: list[tuple[int, float, bool]]
) -> None:
    plan = LoadingPlan.model_construct(images=most, seconds=3.0)
    assert [_enough(plan, *each[:2]) for each in enough] == [each[2] for each in enough]


@pytest.mark.parametrize("kind", ["loader", "decoding", "reading"])
def test_a_timing_counts_whole_batches_until_it_has_its_images(
    digits: Prepared, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(loader_timings, "_WARM_S", 0.0)
    found = {each.kind: each for each in candidates([{"name": "native"}], [1], [])}
    plan = LoadingPlan(
        data=DATA,
        facts=DIGITS,
        split="train",
        batch=32,
        seconds=0.0,
        images=100,
        repeats=1,
        device="cpu",
        candidates=tuple(found.values()),
    )
    batches = loader_timings._endless

    def late(loader: Loader, trial: Trial) -> Iterator[Batch]:
        time.sleep(0.05)
        yield from batches(loader, trial)

    monkeypatch.setattr(loader_timings, "_endless", late)
    threads, began = torch.get_num_threads(), time.perf_counter()
    trial = Trial(plan, digits, found[kind], repeat=3, seed=1)
    try:
        timing = timed(trial)
    finally:
        torch.set_num_threads(threads)
    assert (timing.candidate, timing.repeat, timing.images) == (found[kind].name, 3, 4 * 32)
    assert timing.seconds > 0
    assert timing.start_seconds > (0.05 if kind == "loader" else 0), "until the first batch"
    assert timing.start_seconds + timing.seconds < time.perf_counter() - began


@pytest.mark.parametrize(("free", "fits"), [(2 * 23 * 784, True), (2 * 23 * 784 - 1, False)])
def test_a_set_is_read_once_before_the_timings_if_it_takes_at_most_half_of_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, fits: bool
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
    made = small_sets.write("mnist-idx", tmp_path)
    assert inspect_split(prepare(made.data, made.facts), "train", 2) == Material(
        samples=23,
        image_bytes=784.0,
        pixel_bytes=784.0,
        jpeg_share=0.0,
        encoded=False,
        augment="none",
        read_before=fits,
    )
