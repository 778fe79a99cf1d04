"""Repeats that lie apart from the others, and runs that had not settled: told, never dropped."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from raysuite.records.schema import EpochFinished

FEWEST_REPEATS = 4
"""Of fewer repeats none can be said to lie apart."""
FEWEST_EPOCHS = 4
"""Of fewer epochs the first cannot be held against the spread of the others."""
FAR = 3.5
"""Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers", section 3.3: modified z-scores
above it are potential outliers."""
_NORMAL = 0.6745
"""The median absolute deviation of a normal distribution, in standard deviations."""


def outliers(values: Sequence[float]) -> tuple[int, ...]:
    """The places of the values that lie far from the others.

    Modified z-score `0.6745 * |x - median| / MAD` above 3.5, where MAD is the median of the
    |x - median|. Where more than half of the values are equal, none is called far: their MAD is 0.
    """
    if len(values) < FEWEST_REPEATS:
        return ()
    middle = statistics.median(values)
    distances = [abs(value - middle) for value in values]
    spread = statistics.median(distances)
    if spread == 0:
        return ()
    return tuple(place for place, each in enumerate(distances) if _NORMAL * each / spread > FAR)


def late_settling(epochs: Sequence[EpochFinished]) -> float | None:
    """How much slower the first epoch after the warm-up was than the median of those after it,
    as a share in (0, 1]; None where the run was steady from there on.

    Not steady: its images per second are below the lowest of the later epochs by more than these
    differ among themselves. Told of runs with four such epochs or more.
    """
    speeds = [e.steady_images / e.steady_seconds for e in epochs if e.steady_seconds > 0]
    if len(speeds) < FEWEST_EPOCHS:
        return None
    first, later = speeds[0], speeds[1:]
    if first >= min(later) - (max(later) - min(later)):
        return None
    return 1 - first / statistics.median(later)
