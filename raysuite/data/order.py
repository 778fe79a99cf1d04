"""The samples of each rank in each step, determined by seed and epoch.

An epoch is one permutation of the data set (or an order from `balanced`), cut into global batches;
the last batch has the remaining samples. Each global batch is cut into workers x accumulate
micro-batches whose sizes differ by at most one. A step's samples therefore do not depend on the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from raysuite.data.base import Slice

_SMALLEST = 2
"""Smallest number of samples in a micro-batch: BatchNorm needs two values per channel."""


def permutation(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The random order of all samples in `epoch`: [samples] int64, the same on every machine.

    Sorts the raw output of Philox (Salmon et al., 2011): NumPy guarantees that the stream of a bit
    generator never changes, but does not guarantee this for `Generator.permutation` (NEP 19).
    """
    draws = np.random.Philox(key=[seed, epoch]).random_raw(samples)
    return np.argsort(draws, kind="stable").astype(np.int64)


def balanced(labels: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """An order of as many samples as `labels` has, in which the numbers of samples of any two
    classes differ by at most one; the same on every machine.

    The samples of a class are in random order. If a class has too few samples, they are repeated,
    in a new random order each time. Samples with labels below 0 are left out. Which
    classes get one more sample than the others is random too.
    """
    classes = np.unique(labels[labels >= 0])
    places = np.full(len(classes), len(labels) // max(1, len(classes)))
    draws = np.random.Philox(key=[seed, epoch])
    more = np.argsort(draws.random_raw(len(classes)), kind="stable")
    places[more[: len(labels) - places.sum()]] += 1
    parts = []
    for label, count in zip(classes, places.tolist(), strict=True):
        members = np.flatnonzero(labels == label)
        rounds = draws.random_raw(-(-count // len(members)) * len(members)).reshape(
            -1, len(members)
        )
        parts.append(members[np.argsort(rounds, kind="stable")].ravel()[:count])
    chosen = np.concatenate(parts) if parts else np.arange(len(labels))
    order = np.argsort(draws.random_raw(len(chosen)), kind="stable")
    return chosen[order].astype(np.int64)


def rank_slices(
    order: NDArray[np.int64],
    global_batch: int,
    workers: int,
    rank: int,
    accumulate: int = 1,
    draw: tuple[int, int] | None = None,
    skipped: NDArray[np.bool_] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Iterator[list[Slice]]:
    """Yield, for each optimiser step, the micro-batches of `rank`: a list of `accumulate` Slices.

    A micro-batch with fewer than two samples is padded to two with the step's first samples;
    padding has weight 0 in the loss and is not counted in any metric. `draw`: seed and epoch of the
    augmentation. `skipped` [samples]: True for unreadable samples, which all ranks leave out of the
    global batch. `weights` [samples]: the samples' weights in the loss.
    """
    for start in range(0, len(order), global_batch):
        ids = order[start : start + global_batch]
        if skipped is not None:
            ids = ids[~skipped[ids]]
        spare = ids if len(ids) or skipped is None else np.flatnonzero(~skipped)[:1]
        parts = np.array_split(ids, workers * accumulate)
        own = parts[rank * accumulate : (rank + 1) * accumulate]
        weight = len(ids) if weights is None else float(weights[ids].sum())
        yield [_slice(part, spare, weight, draw) for part in own]


def step_sizes(
    order: NDArray[np.int64], global_batch: int, skipped: NDArray[np.bool_] | None = None
) -> list[int]:
    """The number of samples in each step of an epoch, over all ranks, without skipped ones."""
    return [int(each) for each in step_weights(order, global_batch, None, skipped)]


def step_weights(
    order: NDArray[np.int64],
    global_batch: int,
    weights: NDArray[np.float64] | None,
    skipped: NDArray[np.bool_] | None = None,
) -> list[float]:
    """The sum of the samples' weights (by default 1) in each step of an epoch."""
    own = np.ones(len(order)) if weights is None else weights[order]
    if skipped is not None:
        own = own * ~skipped[order]
    return [float(own[at : at + global_batch].sum()) for at in range(0, len(order), global_batch)]


def _slice(
    part: NDArray[np.int64],
    spare: NDArray[np.int64],
    of_global: float,
    draw: tuple[int, int] | None,
) -> Slice:
    lacking = max(0, _SMALLEST - len(part))
    padded = np.concatenate([part, np.resize(spare, lacking)])
    # a step with only bad samples has weight 0 and loss 0, so divide by 1
    return Slice(ids=padded, real=len(part), of_global=of_global or 1, draw=draw)
