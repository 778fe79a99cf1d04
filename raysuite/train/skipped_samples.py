"""Find the samples to leave out, on all ranks together, before the first epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from raysuite.data import Prepared, Split
from raysuite.data.formats import open_source
from raysuite.data.skipping import CHUNK, Faults, lacking, look
from raysuite.errors import DataError
from raysuite.parallel.base import World
from raysuite.parallel.comm import Comm, gather_plain
from raysuite.plan import RunPlan
from raysuite.records import SamplesSkipped

SPLITS: tuple[Split, ...] = ("train", "val")
MOST_BAD = 0.1
"""The largest share of a split that may be left out. If more samples were left out, the data set
would no longer be the data set of the spec."""
MOST_TOLD = 20
"""Largest number of bad samples that are reported with location and reason; further bad samples are
only counted. Also the largest number of missing parts (`lacking`) that are reported."""
_LONGEST = 400
"""Largest number of bytes of a bad sample's location and reason; a longer text is cut."""


@dataclass(frozen=True)
class Skipped:
    """The samples left out of a split, and its Record; the same on all ranks."""

    mask: NDArray[np.bool_]
    """[samples], True for samples left out."""
    record: SamplesSkipped


def bad_samples(plan: RunPlan, prepared: Prepared, world: World, comm: Comm) -> Iterator[Skipped]:
    """The samples left out of each split; nothing unless `data.bad_samples` is `skip`.

    All ranks must call it. Raises DataError if more than MOST_BAD of a split's samples are bad.
    """
    if plan.spec.data.bad_samples == "skip":
        threads = plan.spec.resources.cpus_per_worker
        for split in SPLITS:
            yield check_samples(prepared, split, plan.run_id, world, comm, threads)


def check_samples(
    prepared: Prepared, split: Split, run_id: str, world: World, comm: Comm, threads: int
) -> Skipped:
    """Check every sample of a split; each rank checks its share, with `threads` threads.

    All ranks must call it. They synchronise after each chunk, so that no rank waits long, and too
    many bad samples end the check early.

    Raises DataError, on all ranks, if more than MOST_BAD of the samples are bad.
    """
    began = time.perf_counter()
    samples = prepared.samples(split)
    faults: Faults = {}
    bad = known = 0
    with (
        closing(open_source(prepared, split)) as source,
        ThreadPoolExecutor(threads, thread_name_prefix="raysuite-look") as pool,
    ):
        for first in range(0, samples, CHUNK * world.size):
            start = first + CHUNK * world.rank
            ids = range(min(start, samples), min(start + CHUNK, samples))
            found, was_known = look(prepared, source, ids, pool) if ids else ({}, True)
            faults |= found
            counts = torch.tensor([len(found), len(ids) if was_known else 0])
            more_bad, more_known = comm.all_reduce(counts, "sum").tolist()
            bad, known = bad + more_bad, known + more_known
            if bad > MOST_BAD * samples:
                break
    mask = _shared_mask(comm, samples, faults)
    reasons = _shared_reasons(comm, np.flatnonzero(mask)[:MOST_TOLD], faults)
    if bad > MOST_BAD * samples:
        raise DataError(
            f"{prepared.files}: more than {MOST_BAD:.0%} of the {samples} samples of {split} "
            "cannot be read, and data.bad_samples=skip allows no more; repair the data set. "
            "The first of them:\n" + "\n".join(reasons[:3])
        )
    record = SamplesSkipped(
        run_id=run_id,
        split=split,
        samples=samples,
        skipped=int(mask.sum()),
        places=reasons,
        lacking=tuple(lacking(prepared, split)[:MOST_TOLD]),
        known=known,
        seconds=time.perf_counter() - began,
    )
    return Skipped(mask, record)


def _shared_mask(comm: Comm, samples: int, faults: Faults) -> NDArray[np.bool_]:
    mask = np.zeros(samples, np.uint8)
    mask[list(faults)] = 1
    return comm.all_reduce(torch.from_numpy(mask), "max").numpy().astype(np.bool_)


def _shared_reasons(comm: Comm, ids: NDArray[np.int64], faults: Faults) -> list[str]:
    """The reasons why the samples `ids` are bad, in the order of `ids`, gathered on all ranks."""
    own = [
        (sample, faults[sample].encode(errors="replace")[:_LONGEST].decode(errors="replace"))
        for sample in ids.tolist()
        if sample in faults
    ]
    known = {sample: text for rows in gather_plain(comm, own) for sample, text in rows}
    return [known[sample] for sample in ids.tolist()]
