"""Means and ratios of means, with simultaneous confidence intervals for several variants.

Functions of arrays take any leading dimensions, so that `benchmarks/simulated_statistics.py` can
apply the report's own functions to many simulated sets. NaN stands for a missing value.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # numpy and scipy take a moment to load, and planning does not need them
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEVEL = 0.95
"""Confidence level of each reported interval, unless a call gives another level."""
PAIRED_FROM = 5
"""Smallest number of rounds with which runs are compared round by round. With fewer rounds, the
degrees of freedom that pairing costs widen its intervals more than a drift between rounds widens
the intervals of unpaired runs."""
FEWEST_REPEATS = 4
"""Number of repeats below which no repeat can be an outlier."""
FEWEST_EPOCHS = 4
"""Number of epochs below which the first epoch cannot be compared with the other epochs."""

Scale = Literal["positive", "share"]
"""positive: seconds, bytes, images per second. share: a part of a whole, in [0, 1]."""


@dataclass(frozen=True)
class Stat:
    """One quantity over the repeats of a variant."""

    values: tuple[float, ...]
    mean: float
    half_width: float | None
    """Half the width of Student's t interval on the linear scale; None for a single repeat."""
    low: float | None = None
    """Lower end of the 95 % confidence interval that is reported; None without an interval."""
    high: float | None = None
    rounds: tuple[tuple[Any, float], ...] = ()
    """(round, time at which the run began) for each value; empty if unknown."""

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def value(self) -> float:
        """The mean; a Ratio has the same attribute."""
        return self.mean


@dataclass(frozen=True)
class Ratio:
    """A ratio of two means."""

    value: float
    low: float | None
    """Lower end of the confidence interval; None if one side has a single repeat."""
    high: float | None

    def scaled(self, factor: float) -> Ratio:
        """The ratio and its interval, multiplied by an exact number."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Ratio(self.value * factor, low, high)

    @property
    def differs_from_one(self) -> bool:
        """Whether the interval exists and excludes 1: a difference has been shown."""
        if self.low is None or self.high is None:
            return False
        return self.low > 1.0 or self.high < 1.0


def t_quantile(probability: float, freedom: Any) -> Any:
    """Quantile of Student's t distribution; `freedom`, its degrees of freedom, may be an array."""
    from scipy.special import stdtrit

    return stdtrit(freedom, probability)


def summarize(
    values: Iterable[float | None],
    scale: Scale = "positive",
    rounds: Sequence[tuple[Any, float]] = (),
) -> Stat | None:
    """Mean and 95 % interval over repeats; None if no repeat has a value.

    `half_width` is `t(0.975, n - 1) * s / sqrt(n)` with the sample's standard deviation s (Student
    1908, Biometrika 6:1, "The probable error of a mean"). `low` and `high` are computed on the
    logarithm of the mean, or on the logit of a share, by the delta method (Casella and Berger 2002,
    Statistical Inference, 5.5.4), so that no end has an impossible value. `rounds` has one entry
    for each value.
    """
    given = list(values)
    places = [place for place, value in enumerate(given) if value is not None]
    known = tuple(value for value in given if value is not None)
    if not known:
        return None
    kept = tuple(rounds[place] for place in places) if rounds else ()
    n = len(known)
    mean = math.fsum(known) / n
    if n == 1:
        return Stat(known, mean, None, rounds=kept)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1) / n)
    half_width = float(t_quantile((1 + LEVEL) / 2, n - 1)) * spread
    low, high = _transformed(mean, half_width, scale)
    return Stat(known, mean, half_width, low, high, kept)


def accuracy(values: Iterable[float | None], samples: int) -> Stat | None:
    """Mean accuracy over repeats on a validation set of `samples` images; None without values.

    The interval combines Student's t interval over seeds with Wilson's interval for a finite set of
    images. The distance of each end from the mean is the root of the sum of the squares of this
    distance in the two intervals (MOVER: Zou and Donner 2008, Statistics in Medicine 27:1693,
    equations 3 and 4). A single repeat has Wilson's interval.
    """
    stat = summarize(values)
    if stat is None:
        return None
    own = stat.half_width or 0.0
    low, high = (float(end) for end in wilson(stat.mean, samples))
    return Stat(
        stat.values,
        stat.mean,
        stat.half_width,
        max(0.0, stat.mean - math.hypot(stat.mean - low, own)),
        min(1.0, stat.mean + math.hypot(high - stat.mean, own)),
    )


def wilson(share: Any, n: int, level: float = LEVEL) -> tuple[Any, Any]:
    """Wilson's confidence interval for a share, or an array of shares, each of n samples (Wilson
    1927, JASA 22:209)."""
    import numpy as np

    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = (
        z / (1 + z**2 / n) * np.sqrt(np.maximum(0.0, share * (1 - share)) / n + z**2 / (4 * n**2))
    )
    return np.maximum(0.0, middle - reach), np.minimum(1.0, middle + reach)


def difference_of_shares(
    above: Any, below: Any, n_above: int, n_below: int, level: float = LEVEL
) -> tuple[Any, Any]:
    """Confidence interval for `above - below`, two independent shares, from Wilson's interval for
    each (Newcombe 1998, Statistics in Medicine 17:873, method 10)."""
    import numpy as np

    (low_a, high_a), (low_b, high_b) = wilson(above, n_above, level), wilson(below, n_below, level)
    return (
        above - below - np.hypot(above - low_a, high_b - below),
        above - below + np.hypot(high_a - above, below - low_b),
    )


def _transformed(mean: float, half_width: float, scale: Scale) -> tuple[float, float]:
    """The ends, on the original scale, of an interval that is symmetric around the logarithm
    (`positive`) or the logit (`share`) of the mean, by the delta method. Both ends stay in the
    possible range."""
    if scale == "share" and 0 < mean < 1:
        odds, reach = mean / (1 - mean), _exp(half_width / (mean * (1 - mean)))
        return odds / reach / (1 + odds / reach), 1 - 1 / (1 + odds * reach)
    if scale == "positive" and mean > 0:
        reach = _exp(half_width / mean)
        return mean / reach, mean * reach
    return mean - half_width, mean + half_width


def _exp(width: float) -> float:
    return math.inf if width > math.log(sys.float_info.max) else math.exp(width)


def ratio_of_means(above: Stat, below: Stat, level: float = LEVEL) -> Ratio | None:
    """`above.mean / below.mean` with its confidence interval; None if undefined.

    See `log_ratios`. Both means have to be positive.
    """
    if above.mean <= 0 or below.mean <= 0:
        return None
    value = above.mean / below.mean
    if above is below:  # a baseline relative to itself: exactly 1
        return Ratio(1.0, 1.0, 1.0)
    if above.n == 1 or below.n == 1:
        return Ratio(value, None, None)
    _, reaches = compared([above, below], level)
    return ratio_of_logs(value, float(reaches[0, 1]))


def ratio_of_logs(value: float, reach: float) -> Ratio:
    """The ratio `value`, with an interval whose half width on the logarithmic scale is `reach`."""
    return Ratio(value, value / _exp(reach), value * _exp(reach))


def fieller(above: Stat, below: Stat) -> Ratio | None:
    """The ratio of the means of two figures that were measured in the same rounds. The upper end of
    its interval is infinite if the mean of `below` is not significantly different from 0. Returns
    None if this mean is 0 or negative, or if `above` and `below` have different numbers of values.

    Fieller 1954, Journal of the Royal Statistical Society B 16:175: the interval has the ratios R
    for which the mean of `above - R * below` is within t(0.975, n - 1) standard errors of 0. Values
    may be negative.
    """
    if below.mean <= 0 or above.n != below.n:
        return None
    x, y, n = above.mean, below.mean, above.n
    if n == 1:
        return Ratio(x / y, None, None)
    apart = [(a - x, b - y) for a, b in zip(above.values, below.values, strict=True)]
    k = float(t_quantile((1 + LEVEL) / 2, n - 1)) ** 2 / n / (n - 1)
    a = y * y - k * math.fsum(v * v for _, v in apart)
    b = x * y - k * math.fsum(u * v for u, v in apart)
    c = x * x - k * math.fsum(u * u for u, _ in apart)
    root = math.sqrt(max(0.0, b * b - a * c))
    if a <= 0:
        return Ratio(x / y, c / (b + root) if b + root > 0 else 0.0, math.inf)
    return Ratio(x / y, (b - root) / a, (b + root) / a)


def compared(stats: Sequence[Stat], level: float = LEVEL) -> tuple[Array, Array]:
    """`log_ratios` of the variants' values, paired by round if `are_blocks(stats)` is True."""
    import numpy as np

    if are_blocks(stats):
        order = [dict(zip((key for key, _ in s.rounds), s.values, strict=True)) for s in stats]
        keys = [key for key, _ in stats[0].rounds]
        return log_ratios(np.array([[own[key] for key in keys] for own in order]), True, level)
    most = max(stat.n for stat in stats)
    padded = [[*stat.values, *[math.nan] * (most - stat.n)] for stat in stats]
    return log_ratios(np.array(padded), False, level)


def are_blocks(stats: Sequence[Stat]) -> bool:
    """Whether all variants ran in the same rounds, the rounds did not overlap in time, and there
    are enough rounds (PAIRED_FROM) to compare the variants round by round."""
    rounds: dict[Any, list[float]] = {}
    for stat in stats:
        for key, began in stat.rounds:
            rounds.setdefault(key, []).append(began)
    if len(rounds) < PAIRED_FROM or any(len(began) != len(stats) for began in rounds.values()):
        return False
    return all(max(a) < min(b) for a, b in itertools.pairwise(sorted(rounds.values())))


def log_ratios(values: Array, paired: bool, level: float = LEVEL) -> tuple[Array, Array]:
    """For positive `values` [..., K, n], return `log(mean_i / mean_j)` and the half width of its
    interval, both [..., K, K], such that `level` holds for all K (K - 1) / 2 intervals at once.

    Each is a Student's t interval, computed by the delta method from the values divided by their
    variant's mean (Casella and Berger 2002, Statistical Inference, 5.5.4). Thus the intervals of R
    and 1/R agree. The level of each pair follows from Bonferroni's inequality for all pairs. The
    best variant may be chosen afterwards, because every comparison with it is one of these pairs.

    If `paired`, variants are compared round by round (a column is a round), otherwise as
    independent samples. For two such samples, the degrees of freedom are those of Welch and
    Satterthwaite (Welch 1947, Biometrika 34:28). With more than two variants, the variance of one
    pair has too few degrees of freedom. So the larger of two variances is taken: that of the pair,
    and the residual variance of all variants (if paired, after subtracting the means of variants
    and of rounds). The degrees of freedom are then those of the residual variance.
    """
    import numpy as np

    K = values.shape[-2]
    n = np.isfinite(values).sum(-1)
    mean = np.nanmean(values, -1)
    apart = np.nan_to_num(values / mean[..., None] - 1)
    if paired:
        apart = apart - apart.mean(-2, keepdims=True)
        products = apart @ np.swapaxes(apart, -1, -2)
        squares = np.diagonal(products, axis1=-2, axis2=-1)
        rounds = values.shape[-1]
        sums = squares[..., :, None] + squares[..., None, :] - 2 * products
        variance = np.maximum(sums, 0.0) / (rounds - 1) / rounds
        freedom: Any = np.full(variance.shape, rounds - 1.0)
        pooled_freedom: Any = (K - 1) * (rounds - 1)
    else:
        squares = (apart**2).sum(-1)
        own = squares / np.maximum(n - 1, 1) / n
        variance = own[..., :, None] + own[..., None, :]
        terms = own**2 / np.maximum(n - 1, 1)
        with np.errstate(invalid="ignore"):
            freedom = variance**2 / (terms[..., :, None] + terms[..., None, :])
        freedom = np.where(variance > 0, freedom, 1.0)
        pooled_freedom = (n - 1).sum(-1)[..., None, None]
    if K > 2:
        pooled = squares.sum(-1)[..., None, None] / pooled_freedom
        variance = np.maximum(variance, pooled * (1 / n[..., :, None] + 1 / n[..., None, :]))
        freedom = pooled_freedom
    tail = (1 - level) / (K * (K - 1))
    reach = t_quantile(1 - tail, freedom) * np.sqrt(variance)
    return np.log(mean)[..., :, None] - np.log(mean)[..., None, :], reach


def caveat_level(rows: int) -> float:
    """The confidence level at which `outlying` and `slow_start` test each of `rows` rows. If rows
    differ only by noise, at most 5 % of reports then have a caveat of either kind (Bonferroni)."""
    return 1 - 0.05 / (2 * max(1, rows))


def outlying(values: Array, level: float) -> Any:
    """A bool mask [..., n] that marks at most one outlier among the n values of the last axis.

    Two-sided test of Grubbs 1969, Technometrics 11:1: in normally distributed values, it finds a
    false outlier with probability 1 - level. With fewer than four values, it finds no outlier.
    """
    import numpy as np

    n = values.shape[-1]
    if n < FEWEST_REPEATS:
        return np.zeros(values.shape, bool)
    apart = np.abs(values - values.mean(-1, keepdims=True))
    t = t_quantile(1 - (1 - level) / (2 * n), n - 2)
    bound = (n - 1) / math.sqrt(n) * math.sqrt(t**2 / (n - 2 + t**2))
    farthest = apart == apart.max(-1, keepdims=True)
    return farthest & (apart > bound * values.std(-1, ddof=1, keepdims=True))


def slow_start(speeds: Array, level: float) -> tuple[Any, Any]:
    """Whether the first epochs of runs were slower than the later epochs, from `speeds` [..., runs,
    epochs]. Returns two arrays [...]: a bool, and 1 - the ratio of the first epoch's speed to the
    geometric mean of the later epochs' speeds, as a geometric mean over runs.

    The test is a one-sided prediction interval of the logarithm of this ratio, averaged over runs.
    The variance of this average follows from the variance of later epochs within runs. If
    epochs differ only by noise, a difference is found with probability 1 - level. With fewer than
    four epochs, no difference is found.
    """
    import numpy as np

    logs = np.log(speeds)
    first, later = logs[..., 0], logs[..., 1:]
    m = np.isfinite(later).sum(-1)
    mean = np.nanmean(later, -1)
    freedom = (m - 1).sum(-1)
    squares = np.nansum((later - mean[..., None]) ** 2, (-1, -2))
    runs = first.shape[-1]
    error = np.sqrt(squares / freedom * (1 + 1 / m).sum(-1)) / runs
    slower = (mean - first).mean(-1)
    return slower > t_quantile(level, freedom) * error, -np.expm1(-slower)
