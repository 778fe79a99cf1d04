"""A comparison of loaders from its plan to its records."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from raysuite.data import Prepared, Split, permutation, prepare
from raysuite.data.formats import open_source
from raysuite.data.pixels import header_of, size_of
from raysuite.measure.environment import environment
from raysuite.orchestrate.loading.rounds import Fact, measure
from raysuite.plan.loading import LoadingPlan, loader_options
from raysuite.records.loading import Candidate, LoadingBench, Material
from raysuite.units import GIB, human_bytes

# A look at the images, and one pass over their files, before anything is timed.

_LOOKED_AT = 128
LARGEST_SHARE = 0.5
"""Of the memory that is free: a set that takes more is not expected to stay in the page cache."""
_PATIENCE_S = 60.0


def look(prepared: Prepared, split: Split, threads: int) -> Material:
    """Sizes of some images; then read the whole split once, if it fits in the page cache.

    Else the first timings would find their files on the disk and the later ones in memory.
    Raises DataError where an image cannot be read.
    """
    samples, channels = prepared.samples(split), prepared.facts.channels
    ids = permutation(samples, 0, 0)
    with closing(open_source(prepared, split)) as source:
        sizes, areas, jpegs = [], [], 0
        for number in ids[:_LOOKED_AT].tolist():
            sample, _ = source.read(number)
            place = source.place(number)
            width, height = size_of(sample, place)
            sizes.append(len(sample) if isinstance(sample, bytes) else sample.nbytes)
            areas.append(width * height * channels)
            jpegs += isinstance(sample, bytes) and header_of(sample, place).kind == "jpeg"
        mean = float(np.mean(sizes))
        fits = mean * samples <= LARGEST_SHARE * psutil.virtual_memory().available
        end = time.monotonic() + _PATIENCE_S

        def touch(part: NDArray[np.int64]) -> bool:
            for number in part.tolist():
                if time.monotonic() > end:
                    return False
                source.read(number)
            return True

        if fits:
            with ThreadPoolExecutor(threads, thread_name_prefix="raysuite-look") as pool:
                fits = all(pool.map(touch, np.array_split(np.sort(ids), 8 * threads)))
    return Material(
        samples=samples,
        image_bytes=mean,
        pixel_bytes=float(np.mean(areas)),
        jpeg_share=jpegs / len(sizes),
        encoded=prepared.encoded,
        augment=prepared.augment,
        read_before=fits,
    )


MOST_DECODED = 2 * GIB
"""Above, `memory` is tried only where it is asked for: each timing decodes the set anew."""


def compare(
    plan: LoadingPlan,
    folder: Path,
    threads: int,
    asked: bool,
    begun: Callable[[str, int], None],
    told: Callable[[Fact], None],
) -> LoadingBench:
    """Measure, and write what there is into `folder` after each timing.

    threads: what the set is read with before the first timing. asked: whether the loaders were
    named by the user. Raises DataError where the data set cannot be read at all.
    """
    prepared = prepare(plan.data, plan.facts)
    material = look(prepared, plan.split, threads)
    plan = plan.model_copy(
        update={"candidates": tuple(_excused(each, material, asked) for each in plan.candidates)}
    )
    bench = LoadingBench(
        name=plan.title,
        time=time.time(),
        plan=plan.model_dump(mode="json", exclude={"candidates"}),
        candidates=plan.candidates,
        environment=environment(),
        material=material,
    )
    bench.save(folder)
    for fact in measure(plan, prepared, folder / "messages.log", begun):
        bench = bench.grown(fact)
        bench.save(folder)
        told(fact)
    bench = bench.model_copy(update={"complete": True})
    bench.save(folder)
    return bench


def _excused(candidate: Candidate, material: Material, asked: bool) -> Candidate:
    """The candidate, with the reason why it cannot or should not be tried."""
    if candidate.kind == "decoding" and not material.encoded:
        return candidate.model_copy(update={"excuse": "the files hold bare pixels"})
    if asked or candidate.kind != "loader" or not loader_options(candidate).holds_decoded:
        return candidate
    size = material.pixel_bytes * material.samples
    if size <= min(MOST_DECODED, 0.5 * psutil.virtual_memory().available):
        return candidate
    excuse = f"left out: the decoded set takes about {human_bytes(size)}; --loader memory tries it"
    return candidate.model_copy(update={"excuse": excuse})
