"""Means with their intervals, and ratios of means with theirs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raysuite.records.steady import outliers

LEVEL = 0.95
"""Confidence level of every interval that is reported, unless a call says otherwise."""


@dataclass(frozen=True)
class Stat:
    """One quantity over the repeats of a variant."""

    values: tuple[float, ...]
    mean: float
    half_width: float | None
    """The 95 % confidence interval is `mean ± half_width`; None for a single repeat."""

    @property
    def n(self) -> int:
        """Number of repeats."""
        return len(self.values)

    @property
    def outliers(self) -> tuple[int, ...]:
        """The places of repeats that lie far from the others; they count all the same."""
        return outliers(self.values)

    @property
    def best(self) -> float:
        """The largest value of all repeats."""
        return max(self.values)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two means."""

    value: float
    low: float | None
    """Lower end of the confidence interval; None where either side has a single repeat."""
    high: float | None

    def scaled(self, factor: float) -> Ratio:
        """The same ratio and interval, times an exact number."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Ratio(self.value * factor, low, high)

    @property
    def differs_from_one(self) -> bool:
        """True where the interval exists and leaves 1 out: a difference has been shown."""
        if self.low is None or self.high is None:
            return False
        return self.low > 1.0 or self.high < 1.0


def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution with `freedom` degrees of freedom."""
    from scipy.special import stdtrit  # here: scipy takes a moment to load, and a plan needs none

    return float(stdtrit(freedom, probability))


def summarize(values: Iterable[float | None]) -> Stat | None:
    """Mean and 95 % interval by Student's t over repeats; None where no repeat has a value.

    The interval is `t(0.975, n - 1) * s / sqrt(n)` with the sample's standard deviation s
    (Student 1908, Biometrika 6:1, "The probable error of a mean").
    """
    known = tuple(value for value in values if value is not None)
    if not known:
        return None
    n = len(known)
    mean = math.fsum(known) / n
    if n == 1:
        return Stat(known, mean, None)
    half_width = t_quantile((1 + LEVEL) / 2, n - 1) * math.sqrt(_variance(known, mean) / n)
    return Stat(known, mean, half_width)


def ratio_of_means(above: Stat, below: Stat, level: float = LEVEL) -> Ratio | None:
    """`above.mean / below.mean` with its confidence interval; None where it is not defined.

    The interval comes from the delta method on the logarithm, so that those of R and 1/R agree:
    `log R ± t * sqrt(u + v)` with `u = s1^2 / (n1 m1^2)` and `v = s2^2 / (n2 m2^2)` (Casella and
    Berger 2002, Statistical Inference, 5.5.4), and t with the degrees of freedom of Welch and
    Satterthwaite, `(u + v)^2 / (u^2 / (n1 - 1) + v^2 / (n2 - 1))` (Welch 1947, Biometrika 34:28).
    The two sides are taken as independent samples. Both means have to be positive.
    """
    if above.mean <= 0 or below.mean <= 0:
        return None
    value = above.mean / below.mean
    if above is below:  # a baseline against itself: one, without any uncertainty
        return Ratio(1.0, 1.0, 1.0)
    if above.n == 1 or below.n == 1:
        return Ratio(value, None, None)
    u, v = (_variance(s.values, s.mean) / (s.n * s.mean**2) for s in (above, below))
    if u + v == 0:
        return Ratio(value, value, value)
    freedom = (u + v) ** 2 / (u**2 / (above.n - 1) + v**2 / (below.n - 1))
    width = t_quantile((1 + level) / 2, freedom) * math.sqrt(u + v)
    if width > math.log(sys.float_info.max):  # two wild repeats: they tell nothing
        return Ratio(value, 0.0, math.inf)
    reach = math.exp(width)
    return Ratio(value, value / reach, value * reach)


def _variance(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
