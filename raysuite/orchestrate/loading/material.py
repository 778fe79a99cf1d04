"""A look at the images, and one pass over their files, before anything is timed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import psutil
from numpy.typing import NDArray

from raysuite.data import Prepared, Split, permutation
from raysuite.data.pixels import header_of, size_of
from raysuite.data.source import open_source
from raysuite.records.loading import Material

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
