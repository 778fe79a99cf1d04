"""A memory that holds so many samples, and a search for what fits into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raysuite.plan.batch_candidates import Search
from raysuite.records.batch_trials import BatchTried, Goal


@dataclass(frozen=True)
class Memory:
    """How many samples fit by a rank alone, and in true steps; and how fast each size is."""

    alone: int
    together: int
    speeds: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """Size -> images per second, one each time that it is timed."""

    def searched(self, sizes: tuple[int, ...], goal: Goal) -> Search:
        """The search at its end."""
        tried: list[BatchTried] = []
        while (asked := (search := Search(sizes, goal, tried)).next()) is not None:
            stage, size = asked
            fits = size <= (self.alone if stage == "alone" else self.together)
            speed = None
            if stage == "together" and fits:
                before = len(search.timings(size))
                speed = self.speeds[size][before] if self.speeds else 1.0
            tried.append(
                BatchTried(stage=stage, micro_batch=size, fits=fits, images_per_second=speed)
            )
            assert len(tried) < 20 * len(sizes) + 20, "the search has no end"
        return search
