"""Batches that are found by trial: the sizes, the search, the plan that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.errors import SpecError
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.batch_candidates import (
    ROUNDS,
    Search,
    decided,
    opened,
    outcome,
    search_of,
    sizes_of,
)
from raysuite.records.batch_trials import BatchFound, BatchTried, Goal, Stage
from raysuite.spec import parse_document
from raysuite.spec.batches import AutoBatch
from tests.memory import Memory

BASE = "name: a\nmodel: resnet20\ndata: digits\nstrategy: ddp\nresources: {workers: 2}\n"


def plan_of(training: str, more: str = "", of: Mapping[str, str] = MappingProxyType({})) -> RunPlan:
    """`of` replaces parts of the base."""
    text = f"{BASE}training: {{epochs: 1, {training}}}\n{more}"
    for old, new in of.items():
        text = text.replace(old, new)
    (plan,) = make_plans(parse_document(text, "x.yaml"), 0)
    return plan


def test_a_worker_tries_powers_of_two_up_to_its_part_of_the_training_set() -> None:
    found = sizes_of(plan_of("batch_per_worker: auto"))  # 1437 samples for two
    assert found.sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    assert found.bound == "samples"
    found = sizes_of(plan_of("batch_per_worker: auto, accumulate: 3"))
    assert found.sizes[-1] == 128  # 239 each
    exact = plan_of("batch_per_worker: auto")
    exact = exact.model_copy(update={"dataset": replace(exact.dataset, train_samples=1024)})
    assert sizes_of(exact).sizes[-1] == 512
    found = sizes_of(plan_of("batch_per_worker: {auto: largest, at_most: 100}"))
    assert (found.sizes[-1], found.bound) == (64, "at_most")


def test_a_given_batch_is_cut_by_its_divisors() -> None:
    found = sizes_of(plan_of("global_batch: 24, accumulate: auto"))
    assert (found.sizes, found.bound) == ((1, 2, 3, 4, 6, 12), "batch")
    found = sizes_of(plan_of("batch_per_worker: 30, accumulate: {auto: largest, at_most: 9}"))
    assert (found.sizes, found.bound) == ((1, 2, 3, 5, 6), "at_most")


def test_what_is_found_gives_all_numbers() -> None:
    rate = "optimizer: {lr: 0.1, lr_reference_batch: 32}\n"
    wish = plan_of("batch_per_worker: auto, accumulate: 2", rate)
    assert wish.undecided
    plan = decided(wish, 16)
    assert not plan.undecided
    assert (plan.micro_batch, plan.accumulate, plan.global_batch) == (16, 2, 64)
    assert plan.spec.training.batch_per_worker == 32
    assert plan.peak_lr == pytest.approx(0.2)
    assert plan.steps_per_epoch == 23
    same = plan_of("batch_per_worker: 32, accumulate: 2", rate)
    assert plan == same
    assert plan.run_id == same.run_id


def test_what_is_found_on_gpus_is_trained_there() -> None:
    text = f"{BASE}training: {{epochs: 1, batch_per_worker: auto}}\n"
    (wish,) = make_plans(parse_document(text, "x.yaml"), gpus=2)
    assert wish.device == decided(wish, 16).device == "gpu"


def test_the_work_stays_the_same_where_the_batch_is_given() -> None:
    wish = plan_of("global_batch: 96, accumulate: auto")
    plan = decided(wish, 16)
    assert (plan.micro_batch, plan.accumulate, plan.global_batch) == (16, 3, 96)
    assert plan == plan_of("global_batch: 96, accumulate: 3")


def test_a_pipeline_is_cut_as_its_schedule_allows() -> None:
    def found(strategy: str, batch: int = 24) -> tuple[int, ...]:
        pipeline = f"strategy: {{name: pipeline, {strategy}}}\n"
        text = BASE.replace("strategy: ddp\n", pipeline) + "training: {epochs: 1, "
        (plan,) = make_plans(parse_document(f"{text}global_batch: {batch}}}\n", "x.yaml"), 0)
        assert plan.undecided
        sizes = sizes_of(plan).sizes
        for size in sizes:
            made = decided(plan, size)
            assert not made.undecided
            assert (made.micro_batch, made.accumulate) == (size, batch // size)
            assert made.spec.strategy.own_accumulation == batch // size
        return sizes

    assert found("schedule: gpipe, micro_batches: auto") == (1, 2, 3, 4, 6, 8, 12, 24)
    assert found("schedule: pipedream_2bw, micro_batches: auto") == (1, 2, 3, 4, 6, 8, 12)
    assert found("schedule: interleaved_1f1b, stages: 4, chunks: 2, micro_batches: auto", 6) == (
        1,
        3,
    )
    assert found("micro_batches: {auto: fastest, at_most: 4}") == (1, 2, 3, 4)


def test_copies_of_a_pipeline_share_the_batch() -> None:
    pipeline = "strategy: {name: pipeline, micro_batches: auto}"
    of = {"strategy: ddp": pipeline, "workers: 2": "workers: 4"}
    wish = plan_of("global_batch: 24", of=of)
    assert (wish.replicas, sizes_of(wish).sizes) == (2, (1, 2, 3, 4, 6, 12))
    made = decided(wish, 3)
    assert (made.micro_batch, made.accumulate, made.global_batch) == (3, 4, 24)


def test_a_batch_that_was_given_is_searched_for_the_fastest() -> None:
    plan = opened(plan_of("global_batch: 24"))
    training = plan.spec.training
    assert (training.global_batch, training.accumulate) == (None, 1)
    assert training.batch_per_worker == AutoBatch(auto="fastest")
    limited = AutoBatch(auto="fastest", at_most=16)
    assert opened(plan, 16).spec.training.batch_per_worker == limited
    assert opened(opened(plan, 16)).spec.training.batch_per_worker == limited
    # the work stays the same where its cut is what is found
    wish = plan_of("global_batch: 24, accumulate: {auto: largest, at_most: 4, memory_share: 0.7}")
    cut = opened(wish).spec.training
    assert (cut.global_batch, cut.batch_per_worker) == (24, None)
    assert cut.accumulate == AutoBatch(auto="fastest", at_most=4, memory_share=0.7)
    pipeline = plan_of("global_batch: 24", of={"strategy: ddp": "strategy: pipeline"})
    staged = opened(pipeline).spec
    assert staged.strategy.micro_batches == AutoBatch(auto="fastest")  # type: ignore[union-attr]
    assert staged.training.global_batch == 24


@pytest.mark.parametrize(
    ("training", "of", "fits", "key", "bound"),
    [
        ("batch_per_worker: auto", {}, 8, "training.batch_per_worker", "memory"),
        (
            "batch_per_worker: {auto: largest, at_most: 8, memory_share: 0.5}",
            *({}, 8, "training.batch_per_worker", "at_most"),
        ),
        ("global_batch: 24, accumulate: auto", {}, 12, "training.accumulate", "batch"),
        (
            "global_batch: 24",
            {"strategy: ddp": "strategy: {name: pipeline, micro_batches: auto}"},
            *(24, "strategy.micro_batches", "batch"),
        ),
    ],
)
def test_the_record_of_a_search_holds_what_was_chosen_and_why_no_more(
    training: str, of: dict[str, str], fits: int, key: str, bound: str
) -> None:
    wish, tried = plan_of(training, of=of), list[BatchTried]()
    while (asked := search_of(wish, tried).next()) is not None:
        stage, size = asked
        assert stage == "together" or not of, "stages are tried in true steps alone"
        whole = size <= fits
        speed = float(size) if whole and stage == "together" else None
        tried.append(BatchTried(stage=stage, micro_batch=size, fits=whole, images_per_second=speed))
    plan, found = outcome(wish, tried, 2.5)
    auto = wish.spec.auto
    assert auto is not None
    assert plan == decided(wish, fits)
    assert (found.run_id, found.key, found.bound) == (plan.run_id, key, bound)
    assert (found.goal, found.memory_share) == (auto.auto, auto.memory_share)
    assert (found.micro_batch, found.accumulate) == (fits, plan.accumulate)
    assert (found.global_batch, found.tried, found.seconds) == (plan.global_batch, tried, 2.5)


@given(st.integers(0, 64))
def test_stages_are_tried_in_true_steps_alone(most: int) -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64)
    tried: list[BatchTried] = []
    while (asked := (search := Search(sizes, "fastest", tried, True)).next()) is not None:
        stage, size = asked
        assert stage == "together"
        fits = size <= most
        speed = float(size) if fits else None
        tried.append(BatchTried(stage=stage, micro_batch=size, fits=fits, images_per_second=speed))
    assert search.chosen == max((size for size in sizes if size <= most), default=None)


@pytest.mark.parametrize(
    ("training", "strategy", "key"),
    [
        ("global_batch: 65, accumulate: auto", "ddp", "training.global_batch"),
        ("global_batch: 64, accumulate: auto", "{name: ddp, static_graph: true}", "static_graph"),
        ("global_batch: auto", "ddp", "batch_per_worker: auto"),
        ("batch_per_worker: auto, accumulate: auto", "ddp", "cannot both be auto"),
    ],
)
def test_what_does_not_go_together(training: str, strategy: str, key: str) -> None:
    text = BASE.replace("ddp", strategy) + f"training: {{epochs: 1, {training}}}\n"
    with pytest.raises(SpecError, match=key):
        make_plans(parse_document(text, "x.yaml"), 0)


ASCENDING = st.lists(st.integers(1, 5000), min_size=1, max_size=40, unique=True).map(sorted)


@given(ASCENDING, st.integers(0, 6000), st.integers(0, 6000))
def test_the_largest_that_fits_is_found(sizes: list[int], alone: int, together: int) -> None:
    """Of true steps, which need more than a rank by itself, at most as much may fit."""
    memory = Memory(alone, min(alone, together))
    search = memory.searched(tuple(sizes), "largest")
    fit = [size for size in sizes if size <= memory.together]
    assert search.chosen == max(fit, default=None)
    if fit:
        assert search.timings(fit[-1])
        larger = [size for size in sizes if size > fit[-1]]
        assert search.hit_memory == bool(larger)
        assert not larger or min(e.micro_batch for e in search.tried if not e.fits) == larger[0]


@given(ASCENDING, st.integers(1, 6000))
def test_no_size_is_tried_that_is_much_larger_than_one_that_fits(
    sizes: list[int], most: int
) -> None:
    search = Memory(most, most).searched(tuple(sizes), "largest")
    fit = 0
    for each in search.tried:
        beyond = [size for size in sizes if size > fit]
        assert each.micro_batch <= max(2, 2 * fit, beyond[0] if beyond else 0)
        fit = max(fit, each.micro_batch if each.fits else 0)


@given(st.integers(0, 12), st.integers(0, 12))
def test_doubling_tries_few(largest: int, powers: int) -> None:
    sizes = tuple(2**n for n in range(powers + 1))
    search = Memory(2**largest, 2**largest).searched(sizes, "largest")
    assert len(search.tried) <= powers + 2


@pytest.mark.parametrize("most", [1, 2, 33, 47, 62, 64])
def test_between_the_last_two_sizes_half_are_ruled_out_at_a_time(most: int) -> None:
    search = Memory(most, most).searched(tuple(range(1, 65)), "largest")
    # sizes are doubled from 2 to 64, then five times halved, and the last is tried in true steps
    assert len(search.tried) <= 6 + 5 + 1
    assert search.chosen == most


def test_a_size_that_is_half_as_fast_as_another_is_timed_once() -> None:
    speeds = {2: [49, 99, 99], 4: [50, 99, 99], 8: [100, 1, 1]}
    search = Memory(8, 8, speeds).searched((2, 4, 8), "fastest")
    assert [len(search.timings(size)) for size in (2, 4, 8)] == [1, ROUNDS, ROUNDS]
    assert search.chosen == 4  # of means of 83 and 34


def test_the_fastest_is_the_smallest_that_is_as_fast_as_any() -> None:
    speeds = {1: [10, 10, 10], 2: [60, 61, 60], 4: [97, 100, 102], 8: [99, 101, 98], 16: [90] * 3}
    search = Memory(16, 16, speeds).searched((1, 2, 4, 8, 16, 32), "fastest")
    assert search.chosen == 4
    assert [len(search.timings(size)) for size in (1, 2, 4, 8, 16)] == [0, 3, 3, 3, 3]
    edge = Memory(4, 4, {2: [95.0] * 3, 4: [100.0] * 3})  # 5 % slower, to the bit
    assert edge.searched((2, 4), "fastest").chosen == 2


def test_noise_makes_no_slow_size_the_fastest() -> None:
    speeds = {16: [700, 500, 528], 32: [1300, 950, 1550], 64: [1308, 700, 1916]}
    search = Memory(64, 64, speeds).searched((16, 32, 64), "fastest")
    assert search.chosen == 32
    found = BatchFound(
        run_id="a",
        key="training.batch_per_worker",
        goal="fastest",
        micro_batch=32,
        accumulate=1,
        global_batch=32,
        bound="at_most",
        memory_share=0.9,
        tried=list(search.tried),
        seconds=1.0,
    )
    assert found.not_told_apart == (16,)  # 64 is within 5 %


def test_rounds_go_up_and_down() -> None:
    memory = Memory(8, 8, {size: [100, 100, 100] for size in (2, 4, 8)})
    tried = memory.searched((2, 4, 8), "fastest").tried
    order = [each.micro_batch for each in tried if each.stage == "together"]
    assert order == [8, 4, 2, 2, 4, 8, 8, 4, 2]
    assert len(order) == 3 * ROUNDS


def test_a_size_that_does_not_fit_in_a_later_round_is_out() -> None:
    def tried(stage: Stage, size: int, fits: bool = True) -> BatchTried:
        speed = 100.0 if stage == "together" and fits else None
        return BatchTried(stage=stage, micro_batch=size, fits=fits, images_per_second=speed)

    goal: Goal = "fastest"
    alone = [tried("alone", 1), tried("alone", 2)]
    first = [tried("together", 2), tried("together", 1)]
    search = Search(
        (1, 2), goal, [*alone, *first, tried("together", 1), tried("together", 2, False)]
    )
    assert search.next() == ("together", 1)
    assert search.chosen == 1
