"""The order of samples: complete, the same for any number of ranks, the same for ever."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raysuite.data import Slice, permutation, rank_slices
from raysuite.data.order import balanced, step_sizes, step_weights

samples = st.integers(1, 300)
batches = st.integers(1, 70)
workers = st.integers(1, 6)
accumulations = st.integers(1, 4)


def steps(order: np.ndarray, batch: int, workers: int, accumulate: int = 1) -> list[list[Slice]]:
    """For each step, all ranks' micro-batches in the order of ranks."""
    by_rank = [
        list(rank_slices(order, batch, workers, rank, accumulate)) for rank in range(workers)
    ]
    assert len({len(own) for own in by_rank}) == 1, "ranks differ in their number of steps"
    return [list(itertools.chain(*parts)) for parts in zip(*by_rank, strict=True)]


def counted(slices: list[Slice]) -> list[int]:
    return [sample for slice_ in slices for sample in slice_.ids[: slice_.real].tolist()]


@given(samples, batches, workers, accumulations, st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_is_the_whole_set_exactly(n, batch, workers, accumulate, seed, epoch):
    order = permutation(n, seed, epoch)
    taken = steps(order, batch, workers, accumulate)
    assert list(itertools.chain(*map(counted, taken))) == order.tolist()
    assert sorted(order.tolist()) == list(range(n))


@given(samples, batches, workers, accumulations)
def test_a_step_holds_the_same_samples_however_many_ranks_share_it(n, batch, workers, accumulate):
    order = permutation(n, 0, 0)
    alone = [counted(step) for step in steps(order, batch, 1)]
    assert [counted(step) for step in steps(order, batch, workers, accumulate)] == alone


@given(samples, batches, workers, accumulations)
def test_only_slices_below_two_samples_are_padded_and_from_their_own_step(
    n, batch, workers, accumulate
):
    for step in steps(permutation(n, 0, 0), batch, workers, accumulate):
        of_step = set(counted(step))
        assert len(step) == workers * accumulate
        assert max(slice_.real for slice_ in step) - min(slice_.real for slice_ in step) <= 1
        for slice_ in step:
            assert len(slice_.ids) == max(2, slice_.real)
            assert set(slice_.ids.tolist()) <= of_step
            assert slice_.of_global == len(of_step)
            assert slice_.ids.dtype == np.int64


@given(samples, batches, workers, accumulations, st.sets(st.integers(0, 299)))
def test_skipped_samples_leave_their_batches_smaller_and_nothing_else(
    n, batch, workers, accumulate, bad
):
    order = permutation(n, 0, 0)
    skipped = np.isin(np.arange(n), list(bad - {n // 2}))  # some sample is always good
    by_rank = [
        list(rank_slices(order, batch, workers, rank, accumulate, skipped=skipped))
        for rank in range(workers)
    ]
    taken = [list(itertools.chain(*parts)) for parts in zip(*by_rank, strict=True)]
    batches = [order[start : start + batch] for start in range(0, n, batch)]
    assert [counted(step) for step in taken] == [ids[~skipped[ids]].tolist() for ids in batches]
    sizes = step_sizes(order, batch, skipped)
    assert sizes == [len(counted(step)) for step in taken]
    for step, size in zip(taken, sizes, strict=True):
        for slice_ in step:
            assert not skipped[slice_.ids].any(), "padding is shown to the network too"
            assert slice_.of_global == max(1, size)
    assert step_sizes(order, batch) == [len(ids) for ids in batches]


def test_a_step_of_bad_samples_alone_is_padded_with_one_good_sample() -> None:
    order, skipped = np.arange(8)[::-1].copy(), np.isin(np.arange(8), (0, 4, 5, 6, 7))
    for rank in range(2):
        first, second = (each for [each] in rank_slices(order, 4, 2, rank, skipped=skipped))
        assert (first.ids.tolist(), first.real, first.of_global) == ([1, 1], 0, 1)
        assert second.of_global == 3
        assert second.ids[: second.real].tolist() == [[3, 2], [1]][rank]


def test_the_order_never_changes_from_one_release_to_the_next():
    assert permutation(10, seed=0, epoch=0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert permutation(10, seed=3, epoch=7).tolist() == [5, 0, 6, 9, 8, 7, 4, 2, 3, 1]
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, -1])
    assert balanced(labels, seed=0, epoch=0).tolist() == [8, 7, 3, 0, 5, 8, 1, 2, 6, 8]
    assert balanced(labels, seed=3, epoch=7).tolist() == [1, 8, 7, 6, 5, 8, 4, 3, 2, 8]
    unlabelled = balanced(np.array([-1, -1, -1]), seed=0, epoch=0)
    assert unlabelled.tolist() == [0, 2, 1]
    assert unlabelled.dtype == permutation(3, 0, 0).dtype == np.int64


def test_seed_and_epoch_both_count():
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_a_balanced_epoch_has_each_class_equally_often(labels, seed, epoch):
    known = np.array(labels)
    if not (known >= 0).any():
        return
    order = balanced(known, seed, epoch)
    assert (order == balanced(known, seed, epoch)).all()
    counts = [int((known[order] == label).sum()) for label in np.unique(known[known >= 0])]
    assert sum(counts) == len(order) == len(labels), "and nothing that is left out"
    assert max(counts) - min(counts) <= 1
    for label in np.unique(known[known >= 0]):
        times = np.bincount(order, minlength=len(labels))[known == label]
        assert times.max() - times.min() <= 1


def test_a_balanced_epoch_draws_every_sample_of_a_class_alike():
    """Against the binomial distribution, over epochs: what is chosen, and its place."""
    labels, epochs = np.repeat([0, 1, 2], [60, 10, 5]), 400
    orders = np.array([balanced(labels, seed=1, epoch=epoch) for epoch in range(epochs)])
    assert orders.shape == (epochs, 75)
    for label, members in enumerate((60, 10, 5)):
        whole, rest = divmod(25 / members, 1)  # of 75 places, a third each
        drawn = np.bincount(orders.ravel(), minlength=75)[labels == label]
        spread = np.sqrt(epochs * rest * (1 - rest))
        assert abs(drawn - epochs * (whole + rest)).max() <= 5 * spread
        places = np.nonzero(labels[orders] == label)[1]
        # the mean of that many of the places 0 to 74, which have a deviation of 75 / sqrt(12)
        assert abs(places.mean() - 37) <= 5 * 75 / np.sqrt(12 * len(places))
    chosen = {tuple(np.unique(order[labels[order] == 0])) for order in orders}
    assert len(chosen) == epochs, "of a frequent class other samples in each epoch"


def test_the_classes_with_one_sample_more_change_from_epoch_to_epoch():
    """11 places of three classes: two of them have 4, each pair in some of 60 epochs."""
    labels = np.repeat([0, 1, 2], [4, 4, 3])
    counts = [np.bincount(labels[balanced(labels, 1, epoch)]) for epoch in range(60)]
    assert {tuple(np.sort(each)) for each in counts} == {(3, 4, 4)}
    assert {tuple(np.flatnonzero(each == 4)) for each in counts} == {(0, 1), (0, 2), (1, 2)}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=100), batches, workers)
def test_the_weight_of_a_step_is_the_same_on_all_ranks(labels, batch, workers):
    weights = np.array([0.5, 1.0, 2.0, 0.0])[labels]
    order = permutation(len(labels), 0, 0)
    sums = [each or 1 for each in step_weights(order, batch, weights)]
    for rank in range(workers):
        own = rank_slices(order, batch, workers, rank, weights=weights)
        assert [part.of_global for step in own for part in step] == sums
