"""The order in which loaders are timed, and the two limits beside them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raysuite.data import Batch, Loader, Prepared, permutation, prepare
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
from raysuite.records.loader_rates import Candidate, Failure, LoadingBench, Material, Timing
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


MATERIAL = Material(
    samples=10,
    image_bytes=7.0,
    pixel_bytes=100.0,
    jpeg_share=1.0,
    encoded=True,
    augment="none",
    read_before=True,
)


def test_what_holds_all_pixels_is_tried_where_they_fit_or_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten images of 7 bytes, which are 100 bytes of pixels each."""
    subjects = candidates([{"name": "native"}, {"name": "memory"}], [1], [])

    def excuses(most: int, named: bool = False, **found: bool) -> dict[str, str]:
        monkeypatch.setattr(loader_timings, "MOST_DECODED", most)
        seen = [_excused(each, MATERIAL.model_copy(update=found), named) for each in subjects]
        return {each.series: each.excuse for each in seen if each.excuse}

    free = 2000
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
    assert excuses(1000) == excuses(999, named=True) == {}
    free = 1999
    assert list(excuses(1000)) == ["memory"]
    free = 2000
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


def timing_of(name: str, repeat: int) -> Timing:
    return Timing(
        candidate=name,
        repeat=repeat,
        images=1,
        seconds=1.0,
        cpu_seconds=1.0,
        machine_seconds=1.0,
        start_seconds=1.0,
    )


def plan_of(*names: str, **excuses: str) -> LoadingPlan:
    found = tuple(
        Candidate(name=name, kind="loader", series=name, width=1, excuse=excuses.get(name, ""))
        for name in names
    )
    return LoadingPlan(
        data=DATA,
        facts=DIGITS,
        split="train",
        batch=32,
        seconds=1.0,
        images=None,
        repeats=3,
        device="cpu",
        candidates=found,
    )


def test_candidates_are_timed_in_turns_until_they_fail_each_trial_in_an_order_of_its_own(
    digits: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b fails in the second round, and x is excused."""
    plan, trials = plan_of("a", "x", "b", "c", x="no"), list[Trial]()
    begun: list[tuple[str, int]] = []

    def apart(trial: Trial, messages: Path) -> Timing | str:
        assert (messages, trial.plan, trial.prepared) == (tmp_path / "log", plan, digits)
        trials.append(trial)
        name = trial.candidate.name
        return "killed" if (name, trial.repeat) == ("b", 1) else timing_of(name, trial.repeat)

    monkeypatch.setattr(loader_timings, "_apart", apart)
    facts = list(
        loader_timings.measure(plan, digits, tmp_path / "log", lambda *each: begun.append(each))
    )
    rounds = [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("b", 1), ("a", 1)]
    assert begun[:6] == rounds
    assert sorted(begun[6:]) == [("a", 2), ("c", 2)]
    assert [(each.candidate, each.repeat) for each in facts] == begun
    failures = [each for each in facts if isinstance(each, Failure)]
    assert failures == [Failure(candidate="b", repeat=1, reason="killed")]
    assert [(trial.candidate.name, trial.repeat) for trial in trials] == begun
    assert [trial.seed for trial in trials[:6]] == [0, 1, 2, 3, 4, 5]
    assert len({trial.seed for trial in trials}) == 8


def test_a_comparison_is_saved_after_each_timing_and_complete_after_the_last(
    digits: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = [timing_of("a", 0), Failure(candidate="b", repeat=0, reason="killed")]

    def saved() -> LoadingBench:
        return LoadingBench.model_validate_json((tmp_path / "loaders.json").read_text())

    def measure(plan: LoadingPlan, *given: Any) -> Iterator[Any]:
        assert given[1:] == (tmp_path / "messages.log", print)
        assert (saved().timings, saved().failures, saved().complete) == ((), (), False)
        yield from facts

    material = MATERIAL.model_copy(update={"encoded": False})
    seen: list[tuple[int, int, bool]] = []

    def on_fact(fact: object) -> None:
        assert fact == facts[len(seen)]
        found = saved()
        seen.append((len(found.timings), len(found.failures), found.complete))

    monkeypatch.setattr(loader_timings, "prepare", lambda *_: digits)
    monkeypatch.setattr(loader_timings, "inspect_split", lambda *_: material)
    monkeypatch.setattr(loader_timings, "measure", measure)
    plan = plan_of("a", "b")
    decoding = Candidate(name="d", kind="decoding", series="d", width=1)
    plan = plan.model_copy(update={"candidates": (*plan.candidates, decoding)})
    made = loader_timings.compare(plan, tmp_path, 2, True, print, on_fact)
    assert seen == [(1, 0, False), (1, 1, False)]
    assert saved() == made
    assert (made.complete, made.timings, made.failures) == (True, (facts[0],), (facts[1],))
    assert [bool(each.excuse) for each in made.candidates] == [False, False, True]
    assert "candidates" not in made.plan


def test_a_limit_takes_the_samples_in_order_and_again_from_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_timings, "_CHUNK", 2)
    seen, ended = list[str](), list[int]()
    limit = loader_timings.Limit(seen.append, "abc", 1, lambda: ended.append(1))
    for images in (2, 5):
        limit.run(images)
    assert "".join(seen) == "abcabca"
    limit.close()
    assert ended == [1]


@pytest.mark.parametrize("kind", ["image_folder-folder", "imagenet-folder"])
def test_the_properties_of_a_set_are_those_of_its_images(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small_sets.write(kind, tmp_path)
    prepared = prepare(made.data, made.facts)
    found = inspect_split(prepared, "val", 2)
    files = [each for each in tmp_path.rglob("*") if each.is_file() and "val" in each.parts]
    pixels, jpegs = 0, 0
    for each in files:
        with Image.open(each) as image:
            pixels += 3 * image.width * image.height
            jpegs += image.format == "JPEG"
    assert found == Material(
        samples=9,
        image_bytes=sum(each.stat().st_size for each in files) / 9,
        pixel_bytes=pixels / 9,
        jpeg_share=jpegs / 9,
        encoded=True,
        augment=prepared.augment,
        read_before=True,
    )
    monkeypatch.setattr(loader_timings, "_PATIENCE_S", -1.0)
    assert not inspect_split(prepared, "val", 2).read_before


@pytest.mark.parametrize("split", ["train", "val"])
def test_epochs_follow_each_other_each_in_an_order_of_its_own(
    digits: Prepared, monkeypatch: pytest.MonkeyPatch, split: Any
) -> None:
    """Two epochs at a time. Only training images are augmented."""
    plan = plan_of("a").model_copy(update={"split": split})
    trial, samples = Trial(plan, digits, plan.candidates[0], 0, seed=7), digits.samples(split)
    steps = -(-samples // 32)
    monkeypatch.setattr(loader_timings, "_PASS", steps + 1)
    loader: Any = SimpleNamespace(batches=lambda slices: slices)
    slices: Any = list(itertools.islice(loader_timings._endless(loader, trial), 3 * steps))
    for epoch in range(3):
        own = slices[epoch * steps : (epoch + 1) * steps]
        order = np.concatenate([each.ids for each in own])
        assert np.array_equal(order, permutation(samples, 7, epoch))
        assert {each.draw for each in own} == {(7, epoch) if split == "train" else None}
