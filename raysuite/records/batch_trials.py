"""The trials and the result of a search for a run's batch size."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter

from raysuite.files import append_line, read_lines
from raysuite.records.base import RecordBase, checked_line, content_of
from raysuite.records.statistics import Stat, compared, summarize
from raysuite.spec.base import Strict
from raysuite.units import human_bytes

NEAR = 0.95
"""With the goal "fastest", the smallest size is chosen whose mean throughput is at least this share
of the highest mean throughput."""

Goal = Literal["largest", "fastest"]
Stage = Literal["alone", "together"]
"""alone: passes on each rank without the other ranks. together: full steps on all ranks."""


class BatchTried(Strict):
    """One micro-batch size that was tried on all ranks. Lists hold a value per worker."""

    stage: Stage
    micro_batch: int
    """Samples of one forward pass on one worker."""
    fits: bool
    """Whether this size fits on every worker."""
    peak_bytes: list[int] = Field(default_factory=list)
    """Peak memory in bytes: on a GPU, torch's allocated memory; on a CPU, the growth of the
    process's resident memory."""
    limit_bytes: list[int] = Field(default_factory=list)
    """Bytes that each worker may use."""
    images_per_second: float | None = None
    """Throughput over all workers in the steps after a warm-up; None if the size was not timed."""
    message: str = ""
    """Why the size does not fit."""

    @property
    def words(self) -> str:
        found = f"a micro-batch of {self.micro_batch} " + ("fits" if self.fits else "does not fit")
        if self.fits and self.peak_bytes:
            worst = max(zip(self.peak_bytes, self.limit_bytes, strict=True))
            found += f" ({human_bytes(worst[0])} of {human_bytes(worst[1])})"
        if self.images_per_second is not None:
            found += f", {self.images_per_second:,.0f} samples/s"
        return f"{found}: {self.message}" if self.message else found


class TriedFile:
    """A file with the trials so far, one per line, so that a search can be resumed.

    If a size has a `begin` line but no result, the trial of this size killed the workers, so the
    size does not fit.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)

    def begin(self, stage: Stage, micro_batch: int) -> None:
        """Record that a size is about to be tried."""
        append_line(self._file, json.dumps({"begin": [stage, micro_batch]}).encode())

    def end(self, tried: BatchTried) -> None:
        append_line(self._file, checked_line(tried))

    def read(self) -> list[BatchTried]:
        """All trials in order. Call this only while no rank is trying a size."""
        ended, trying = self._lines()
        return ended if trying is None else [*ended, trying]

    def ended(self) -> list[BatchTried]:
        """The trials that have ended. A rank may be trying a size meanwhile."""
        return self._lines()[0]

    def _lines(self) -> tuple[list[BatchTried], BatchTried | None]:
        """(trials that have ended, the trial that has begun but not ended, if any)."""
        found: list[BatchTried] = []
        trying: BatchTried | None = None
        for line in read_lines(self._file):
            try:
                tried = _TRIED.validate_json(content_of(line))
            except ValueError:  # the trial on a damaged line is repeated
                trying = None
                continue
            if isinstance(tried, BatchTried):
                found.append(tried)
                trying = None
                continue
            if trying is not None:
                found.append(trying)
            stage, size = tried["begin"]
            trying = BatchTried(stage=stage, micro_batch=size, fits=False, message=_DIED)
        return found, trying


_TRIED: TypeAdapter[BatchTried | dict[Literal["begin"], tuple[Stage, int]]] = TypeAdapter(
    BatchTried | dict[Literal["begin"], tuple[Stage, int]]
)
_DIED = "a worker ended during the trial of this size"


class BatchFound(RecordBase):
    """The batch size that a search found before the run."""

    kind: Literal["batch_found"] = "batch_found"
    key: Literal["training.batch_per_worker", "training.accumulate", "strategy.micro_batches"]
    """The spec's key whose value was found. Only `batch_per_worker` changes the global batch."""
    goal: Goal
    micro_batch: int
    accumulate: int
    global_batch: int
    bound: Literal["memory", "at_most", "samples", "batch"]
    """What limits the size from above: memory, the spec's `at_most`, or the number of samples in
    the training set or in the global batch."""
    memory_share: float
    tried: list[BatchTried]
    """The trials in order."""
    seconds: float
    """Seconds that the search and the start of its workers took; they are part of the cost of a
    sweep's trial."""

    @property
    def not_told_apart(self) -> tuple[int, ...]:
        """Sizes that fit, and whose mean throughput differs from that of the chosen size by more
        than NEAR allows, but not significantly: the difference may be noise."""
        timed: dict[int, list[float]] = {}
        # a size may have fitted in earlier rounds
        limit = min((each.micro_batch for each in self.tried if not each.fits), default=math.inf)
        for each in self.tried:
            if each.micro_batch < limit and each.images_per_second:
                timed.setdefault(each.micro_batch, []).append(each.images_per_second)
        stats = {size: stat for size in sorted(timed) if (stat := summarize(timed[size]))}
        repeated = {size: stat for size, stat in stats.items() if stat.n > 1}
        own = repeated.get(self.micro_batch)
        if self.goal != "fastest" or own is None or len(repeated) < 2:
            return ()
        ratios, reaches = compared(list(repeated.values()))
        place = list(repeated).index(self.micro_batch)
        return tuple(
            size
            for (size, stat), ratio, reach in zip(
                repeated.items(), ratios[place], reaches[place], strict=True
            )
            if not NEAR <= stat.mean / own.mean <= 1 / NEAR and abs(ratio) <= reach
        )

    @property
    def why_no_larger(self) -> str:
        return {
            "memory": "no larger one fits",
            "at_most": "at_most allows no more",
            "samples": "the next larger size needs more samples than the training set has",
            "batch": "the global batch allows no more per copy of the network",
        }[self.bound]

    @property
    def why_fastest(self) -> str:
        """Why the size was chosen as the fastest, and which other sizes may be as fast."""
        why = f"the smallest size with a mean throughput within {1 - NEAR:.0%} of the highest"
        if others := self.not_told_apart:
            sizes = ", ".join(map(str, others))
            why += f"; the timings vary so much that {sizes} may be as fast or faster"
        return why

    @property
    def words(self) -> str:
        why = self.why_fastest if self.goal == "fastest" else self.why_no_larger
        times = f" x {self.accumulate}" if self.accumulate > 1 else ""
        return (
            f"micro-batch {self.micro_batch}{times} on each worker, a global batch of "
            f"{self.global_batch}, found by trial ({self.goal}: {why})"
        )


# The figures of each size in a search for a batch size.


@dataclass(frozen=True)
class SizeFigures:
    """The figures of one micro-batch size. A figure is None if it was not measured."""

    micro_batch: int
    fits: bool
    peak_bytes: int | None
    """Peak memory of the worker that used the most memory."""
    limit_bytes: int | None
    images_per_second: Stat | None
    message: str


def size_figures(tried: Sequence[BatchTried]) -> list[SizeFigures]:
    """The figures of each size, in ascending order."""
    sizes: dict[int, list[BatchTried]] = {}
    for each in tried:
        sizes.setdefault(each.micro_batch, []).append(each)
    return [_figures(size, sizes[size]) for size in sorted(sizes)]


def _figures(size: int, tried: Sequence[BatchTried]) -> SizeFigures:
    wrong = [each.message for each in tried if not each.fits]
    # stage "together" uses more memory than "alone", and as much as the run
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
