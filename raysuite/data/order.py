"""Which rank sees which sample when: a function of seed and epoch alone.

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


def rank_slices(
    order: NDArray[np.int64],
    global_batch: int,
    workers: int,
    rank: int,
    accumulate: int = 1,
    draw: tuple[int, int] | None = None,
    skipped: NDArray[np.bool_] | None = None,
) -> Iterator[list[Slice]]:
    """For each optimiser step, `rank`'s micro-batches (a list of `accumulate` Slices).

    A micro-batch with fewer than two samples is padded to two with the step's first samples;
    padding has weight 0 in the loss and does not count in any metric. `draw` is seed and epoch
    of the augmentation. `skipped` [samples] marks what cannot be read: each global batch that
    would hold such a sample is smaller by it, on all ranks alike.
    """
    for start in range(0, len(order), global_batch):
        ids = order[start : start + global_batch]
        if skipped is not None:
            ids = ids[~skipped[ids]]
        spare = ids if len(ids) or skipped is None else np.flatnonzero(~skipped)[:1]
        parts = np.array_split(ids, workers * accumulate)
        own = parts[rank * accumulate : (rank + 1) * accumulate]
        yield [_slice(part, spare, len(ids), draw) for part in own]


def step_sizes(
    order: NDArray[np.int64], global_batch: int, skipped: NDArray[np.bool_] | None = None
) -> list[int]:
    """Samples that count in each of an epoch's steps, over all ranks."""
    counts = np.ones(len(order), np.int64) if skipped is None else ~skipped[order]
    return [int(counts[at : at + global_batch].sum()) for at in range(0, len(order), global_batch)]


def _slice(
    part: NDArray[np.int64], spare: NDArray[np.int64], of_global: int, draw: tuple[int, int] | None
) -> Slice:
    lacking = max(0, _SMALLEST - len(part))
    padded = np.concatenate([part, np.resize(spare, lacking)]) if lacking else part
    # a step of bad samples alone has none that count; 1 keeps its sum of nothing at 0
    return Slice(ids=padded, real=len(part), of_global=max(1, of_global), draw=draw)
