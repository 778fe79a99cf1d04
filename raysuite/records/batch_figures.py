"""What a search for a batch tells of each size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysuite.records.batches import BatchTried
from raysuite.records.statistics import Stat, summarize


@dataclass(frozen=True)
class SizeFigures:
    """All that was found of one micro-batch. None where it was not measured."""

    micro_batch: int
    fits: bool
    peak_bytes: int | None
    """Of the worker that took most."""
    limit_bytes: int | None
    images_per_second: Stat | None
    message: str


def size_figures(tried: Sequence[BatchTried]) -> list[SizeFigures]:
    """One for each size, ascending."""
    sizes: dict[int, list[BatchTried]] = {}
    for each in tried:
        sizes.setdefault(each.micro_batch, []).append(each)
    return [_figures(size, sizes[size]) for size in sorted(sizes)]


def _figures(size: int, tried: Sequence[BatchTried]) -> SizeFigures:
    wrong = [each.message for each in tried if not each.fits]
    # what fits together takes more than it does alone, and is what a run takes
    last = [each for each in tried if each.stage == "together" and each.fits] or list(tried)
    peaks = [peak for each in last for peak in each.peak_bytes]
    limits = [limit for each in last for limit in each.limit_bytes]
    return SizeFigures(
        micro_batch=size,
        fits=not wrong,
        peak_bytes=max(peaks, default=None),
        limit_bytes=min(limits, default=None),
        images_per_second=summarize(each.images_per_second for each in tried),
        message=wrong[0] if wrong else "",
    )
