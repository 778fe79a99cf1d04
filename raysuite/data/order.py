"""Which rank trains on which sample in which step: a function of seed and epoch alone.

An epoch is one permutation of the data set, cut into global batches; the last one holds what is
left. Each global batch is cut into workers x accumulate micro-batches whose sizes differ by at
most one, so the samples of a step do not depend on how many ranks share it, nor on the loader.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from raysuite.data.base import Slice

_SMALLEST = 2
"""Samples of the smallest micro-batch: BatchNorm in training needs two values per channel."""


def permutation(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of `samples` in `epoch`: [samples] int64, the same on every machine.

    Sorts the raw output of Philox (Salmon et al., 2011): NumPy promises that a bit generator's
    stream never changes, and promises no such thing of `Generator.permutation` (NEP 19).
    """
    draws = np.random.Philox(key=[seed, epoch]).random_raw(samples)
    return np.argsort(draws, kind="stable").astype(np.int64)


def balanced(labels: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """An order with as many samples as `labels` [samples], the same on every machine, in which the
    classes have equal numbers of samples, up to one.

    A class's samples are in a random order, repeated in other orders where it needs more samples
    than it has. Labels below 0 mark samples that are left out. The classes with one sample more are
    chosen anew in each epoch.
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
    """For each optimiser step, `rank`'s micro-batches (a list of `accumulate` Slices).

    A micro-batch with fewer than two samples is padded to two with the step's first samples;
    padding has weight 0 in the loss and does not count in any metric. `draw` is seed and epoch
    of the augmentation. `skipped` [samples] marks what cannot be read: each global batch that
    would hold such a sample is smaller by it, on all ranks alike. `weights` [samples] are those of
    the loss.
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
    """Samples that count in each of an epoch's steps, over all ranks."""
    return [int(each) for each in step_weights(order, global_batch, None, skipped)]


def step_weights(
    order: NDArray[np.int64],
    global_batch: int,
    weights: NDArray[np.float64] | None,
    skipped: NDArray[np.bool_] | None = None,
) -> list[float]:
    """The summed weights, or the number, of the samples in each of an epoch's steps."""
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
    padded = np.concatenate([part, np.resize(spare, lacking)]) if lacking else part
    # a step of bad samples alone has none that count; 1 keeps its sum of nothing at 0
    return Slice(ids=padded, real=len(part), of_global=of_global or 1, draw=draw)
