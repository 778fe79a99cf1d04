"""Predict throughput on many workers from throughput measured on few, with intervals.

The time of a step is a sum of terms, each a coefficient times a quantity that follows from the
numbers of workers W and nodes N. The sum is multiplied by an unknown drift and by noise:

    t(W, N) = (sum of c_k x_k(W, N)) * exp(drift(log2 W)) * exp(noise)

The drift is a random walk over doublings of the workers; it is 0 at the smallest number of workers.
The drift models effects that no term describes, such as slow upper levels of a network, and makes
intervals grow with the distance from the measured numbers of workers. Three kinds of parameters
have log-normal priors: the coefficients (`TERMS`), the standard deviation of the change of the
drift at a doubling (`DRIFT`), and the standard deviation of the noise (`NOISE`). An ensemble
sampler with stretch moves draws from their posterior (Goodman and Weare 2010,
https://doi.org/10.2140/camcos.2010.5.65).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from raysuite.errors import UserError, some
from raysuite.perf import costs
from raysuite.perf.validation import of_scaling, words
from raysuite.records import RunFigures
from raysuite.records.names import script_name, series_name, work_name
from raysuite.records.predicted import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEVEL = 0.9
"""Level of the intervals, from the 5th to the 95th percentile of the draws."""
LEAST_SIZES = 2
"""A series needs at least this many different numbers of workers."""
WALKERS, STEPS, KEPT_EVERY = 48, 1500, 5
"""Settings of the sampler. After the first third of the steps, every fifth step is kept."""


class Prior(NamedTuple):
    """A log-normal distribution."""

    median: float
    deviation: float
    """Standard deviation of the natural logarithm."""


@dataclass(frozen=True)
class Term:
    """A term of the time of a step, as a function of workers and nodes."""

    words: str
    amount: Callable[[float, float], float]
    """The quantity for W workers on N nodes."""
    prior: Prior
    """Prior of the coefficient, relative to the time of a step on the fewest workers."""
    per_image: bool = False
    """Whether the term is proportional to the number of images per worker and step."""


TERMS: dict[str, Term] = {
    "computation": Term("computation", lambda w, n: 1.0, Prior(1.0, 0.5), per_image=True),
    "beside": Term(
        "workers of a node that share its memory and links",
        lambda w, n: 1 - n / w,
        Prior(0.1, 1.0),
        per_image=True,
    ),
    "bandwidth": Term(
        "bytes of the all-reduce between nodes", lambda w, n: (n - 1) / n, Prior(0.1, 1.2)
    ),
    "levels": Term(
        "levels of a tree: messages, and contention in the network",
        lambda w, n: math.log2(n),
        Prior(0.03, 1.2),
    ),
    "shared": Term(
        "costs that every node adds: messages of a ring, a shared file system",
        lambda w, n: n - 1.0,
        Prior(3e-4, 1.5),
    ),
    "slowest": Term(
        "waiting for the slowest worker", lambda w, n: math.sqrt(2 * math.log(w)), Prior(0.02, 1.0)
    ),
}
"""The quantity of `bandwidth`, (N - 1) / N, is the share of the buffer that each of N nodes sends
to another node in each of the two phases of a ring all-reduce. The quantity of `slowest` is the
expected maximum of W delays with a standard normal distribution, to first order. The medians are
assumed orders of magnitude for data-parallel training; a deviation of 1 to 1.5 corresponds to a
factor of 2.7 to 4.5."""
DRIFT = Prior(0.03, 0.7)
"""Prior of the standard deviation by which the drift changes at each doubling of the workers. The
time of a step is multiplied by exp(drift)."""
NOISE = Prior(0.02, 0.7)
"""Prior of the standard deviation of the noise, which is added to the logarithm of a step's
time."""
TOLD = 0.8
"""The measurements do not determine a coefficient if the posterior deviation of its logarithm is
above this share of the prior deviation."""


class Point(NamedTuple):
    """One measurement."""

    workers: int
    nodes: int
    throughput: float
    """Throughput of all workers, in any unit; all points of a series have the same unit."""
    batch: float = 0.0
    """Global batch size; 0 means that it is proportional to the workers."""

    @property
    def images(self) -> float:
        """Images per worker and step; 1 if `batch` is 0."""
        return self.batch / self.workers if self.batch else 1.0

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.images * self.workers / self.throughput


@dataclass(frozen=True)
class Scaling:
    """The posterior of one series, which predicts throughput on other numbers of workers."""

    points: tuple[Point, ...]
    terms: tuple[str, ...]
    """Terms that the series or the wanted predictions need, in the order of `draws`."""
    draws: Array
    """[draw, term + 2]: logarithms of the coefficients, of the standard deviation of the change of
    the drift at a doubling, and of the standard deviation of the noise."""
    unit: float
    """Seconds that correspond to a coefficient of 1."""
    images: float
    """The coefficients of terms with `per_image` are for this number of images per worker and step.
    They are scaled in proportion for other numbers."""

    @property
    def untold(self) -> list[str]:
        """Terms whose coefficients the measurements do not determine: see `TOLD`."""
        spread = self.draws.std(axis=0)
        return [
            name
            for name, deviation in zip(self.terms, spread, strict=False)
            if deviation > TOLD * TERMS[name].prior.deviation
        ]

    def predict(self, workers: int, nodes: int, batch: float = 0.0) -> Interval:
        """Median and 90 % interval of the throughput that is measured on `workers` workers."""
        import numpy as np

        place = Point(workers, nodes, 1.0, batch)
        random = np.random.default_rng(workers)
        coefficients = np.exp(self.draws[:, :-2])
        walk, noise = np.exp(2 * self.draws[:, -2:]).T
        steps = coefficients @ self._amounts([place])[0]
        known = np.log(coefficients @ self._amounts(self.points).T)
        rest = np.log([each.seconds / self.unit for each in self.points]) - known
        covariance = _covariance(self.points, walk, noise)
        first = self.points[0].workers
        to = walk[:, None] * [_shared(first, each.workers, workers) for each in self.points]
        solved = np.linalg.solve(covariance, np.stack([rest, to], axis=2))
        mean = (to * solved[:, :, 0]).sum(axis=1)
        spread = walk * abs(math.log2(workers / first)) - (to * solved[:, :, 1]).sum(axis=1)
        drawn = random.standard_normal(len(mean)) * np.sqrt(np.maximum(spread, 0.0) + noise)
        seconds = self.unit * steps * np.exp(mean + drawn)
        made = workers * place.images / seconds
        low, value, high = np.quantile(made, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
        return Interval(float(value), float(low), float(high))

    def _amounts(self, points: Sequence[Point]) -> Array:
        return _amounts(points, self.terms, self.images)


def fit(points: Iterable[Point], wanted: Iterable[Point] = (), seed: int = 0) -> Scaling:
    """Draw from the posterior of a series. If only the predictions `wanted` need a term, such as
    those of the network if only one node was measured, its coefficient keeps its prior. Raises
    ValueError if `enough` is False for the series."""
    import numpy as np

    known = sorted(points)
    if not enough(known):
        raise ValueError(f"fewer than {LEAST_SIZES} different numbers of workers")
    first = known[0]
    images, unit = first.images, first.seconds
    terms = _separable([*known, *wanted], images)
    amounts = _amounts(known, terms, images)
    times = np.log([each.seconds / unit for each in known])
    priors = [TERMS[name].prior for name in terms] + [DRIFT, NOISE]
    centre = np.log([each.median for each in priors])
    deviation = np.array([each.deviation for each in priors])

    def density(draws: Array) -> Array:
        """Logarithm of the posterior's density, up to a constant; draws are [n, term + 2]."""
        rest = times - np.log(np.exp(draws[:, :-2]) @ amounts.T)
        covariance = _covariance(known, *np.exp(2 * draws[:, -2:]).T)
        solved = np.linalg.solve(covariance, rest[:, :, None])[:, :, 0]
        likelihood = (rest * solved).sum(axis=1) + np.linalg.slogdet(covariance)[1]
        prior = (((draws - centre) / deviation) ** 2).sum(axis=1)
        return np.asarray(-0.5 * (likelihood + prior))

    random = np.random.default_rng(seed)
    start = centre + 0.3 * deviation * random.standard_normal((WALKERS, len(centre)))
    return Scaling(tuple(known), terms, _drawn(density, start, random), unit, images)


def left_out(points: Sequence[Point]) -> tuple[Point, Interval] | None:
    """The measurement with the most workers (the mean of its repeats), and its prediction from the
    other measurements; None if the others are too few for a fit."""
    known = sorted(points)
    largest = _mean(known, known[-1])
    others = [each for each in known if each.workers < largest.workers]
    if not enough(others):
        return None
    made = fit(others, [largest]).predict(largest.workers, largest.nodes, largest.batch)
    return largest, made


def _mean(points: Sequence[Point], of: Point) -> Point:
    """The point `of`, with the mean throughput of all points that equal it except in throughput."""
    alike = [each.throughput for each in points if each._replace(throughput=of.throughput) == of]
    return of._replace(throughput=fmean(alike))


@dataclass(frozen=True)
class Place:
    """The prediction for one number of workers."""

    workers: int
    nodes: int
    throughput: Interval
    efficiency: Interval
    """Throughput per worker / throughput per worker on the fewest measured workers."""


@dataclass(frozen=True)
class Forecast:
    """One series with its predictions."""

    series: str
    measured: tuple[int, ...]
    places: tuple[Place, ...]
    untold: tuple[str, ...]
    error: float | None
    """Relative error with which the measurement with the most workers is predicted from the others;
    None if these are too few for a prediction."""

    @property
    def words(self) -> str:
        largest = self.measured[-1]
        if self.error is None:
            said = f"not validated: validation needs {LEAST_SIZES + 1} different numbers of workers"
        else:
            said = (
                f"the throughput on {largest} workers is predicted from that on fewer workers with "
                f"an error of {self.error:+.1%}"
            )
        said += f". From few workers to many: {words(of_scaling(largest))}"
        if self.untold:
            told = "; ".join(TERMS[name].words for name in self.untold)
            said += f". Not determined by these figures, so assumed values are used: {told}"
        return said


def enough(points: Sequence[Point]) -> bool:
    """Whether a series has enough different numbers of workers for a fit."""
    return len({each.workers for each in points}) >= LEAST_SIZES


def forecast(
    name: str, points: Sequence[Point], workers: Sequence[int], per_node: int | None = None
) -> Forecast:
    """Predict a series on other numbers of workers.

    `per_node` is the number of workers per node; by default, the same number as in the measurement
    with the most workers. The number of images per worker is also taken from this measurement. But
    if all measurements have the same global batch size, the predictions are for this global batch
    size.
    """
    known = sorted(points)
    first, last = _mean(known, known[0]), known[-1]
    beside = per_node or last.workers / last.nodes
    alone = first.throughput / first.workers
    fixed = len({each.batch for each in known}) == 1
    wanted = [
        Point(count, math.ceil(count / beside), 1.0, last.batch if fixed else last.images * count)
        for count in workers
    ]
    found = fit(known, wanted)
    places = []
    for count, nodes, _, batch in wanted:
        made = found.predict(count, nodes, batch)
        places.append(Place(count, nodes, made, made.times(1 / (alone * count))))
    checked = left_out(points)
    error = None if checked is None else checked[1].value / checked[0].throughput - 1
    sizes = tuple(sorted({each.workers for each in points}))
    return Forecast(name, sizes, tuple(places), tuple(found.untold), error)


def read_figures(file: Path, workers_per_node: int | None = None) -> dict[str, list[Point]]:
    """The series of a CSV file with the columns `workers`, `throughput`, and optionally `nodes` and
    `batch` (global); values of all other columns distinguish series. Raises UserError that names
    the first wrong lines, or states why the file cannot be read."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{file} cannot be read: {why}; give a CSV file of UTF-8 text, or a results folder"
        ) from error
    columns = set(rows[0]) if rows else set()
    missing = sorted({"workers", "throughput"} - columns)
    if missing or not ({"nodes"} & columns or workers_per_node):
        raise UserError(
            f"{file}: "
            + (f"no column {' and no column '.join(missing)}" if missing else "no column nodes")
            + "; valid: a line of headings with workers, throughput, nodes (or give "
            "--workers-per-node), optionally batch, and columns that distinguish series"
        )
    series: dict[str, list[Point]] = {}
    wrong = []
    for number, row in enumerate(rows, 2):
        beyond = row.pop(None, [])  # cells without a heading
        name = " · ".join(
            value
            for key, value in row.items()
            if key not in ("workers", "nodes", "throughput", "batch") and value
        )
        try:
            workers = int(row["workers"])
            nodes = int(row.get("nodes") or math.ceil(workers / (workers_per_node or 1)))
            throughput, batch = float(row["throughput"]), float(row.get("batch") or 0)
            if any(beyond) or not (
                1 <= nodes <= workers and 0 < throughput < math.inf and batch >= 0
            ):
                raise ValueError
        except (ValueError, TypeError):
            wrong.append(f"line {number}")
            continue
        series.setdefault(name or file.stem, []).append(Point(workers, nodes, throughput, batch))
    if wrong:
        raise UserError(
            f"{file}: {some(wrong, 5)}: workers and nodes should be whole numbers from 1 on, with "
            "no more nodes than workers, throughput should be positive, batch empty or positive, "
            "and every value should have a heading"
        )
    check_batches(series, (file,))
    return series


def check_batches(series: Mapping[str, Sequence[Point]], sources: Sequence[Path]) -> None:
    """Raise UserError if only some points of a series have a batch size: the times of their steps
    would then have different units."""
    mixed = [name for name, own in series.items() if len({each.batch > 0 for each in own}) > 1]
    if mixed:
        raise UserError(
            f"{', '.join(map(str, sources))}: only some lines of {some(mixed, 5)} have a batch; "
            "give it in every line of a series, or in none"
        )


def series_of(
    runs: Iterable[RunFigures], workers_per_node: int | None = None
) -> dict[str, list[Point]]:
    """The series of measured runs: variants that differ only in number of workers and batch size.

    Runs of different results folders may have equal names but different costs, for example because
    of their precision. The parts of a plan that differ then become part of the series' names.
    """
    found: dict[str, dict[tuple[str, ...], list[Point]]] = {}
    for run in runs:
        if run.status == "finished" and run.throughput is not None:
            plan = run.plan
            name = f"{work_name(plan)} · {series_name(plan)}"
            kinds: tuple[str, ...] = (
                ()
                if script_name(plan)
                else (costs.work_name(plan), costs.strategy_kind(plan), costs.loader_kind(plan))
            )
            nodes = math.ceil(run.workers / (workers_per_node or run.workers))
            point = Point(run.workers, nodes, run.throughput, float(plan.get("global_batch") or 0))
            found.setdefault(name, {}).setdefault(kinds, []).append(point)
    series = {}
    for name, own in found.items():
        for kinds, points in own.items():
            apart = [
                kind for place, kind in enumerate(kinds) if len({each[place] for each in own}) > 1
            ]
            series[" · ".join([name, *apart])] = points
    return series


def _amounts(points: Sequence[Point], terms: Sequence[str], images: float) -> Array:
    """[point, term] quantities."""
    import numpy as np

    return np.array(
        [
            [
                term.amount(each.workers, each.nodes)
                * (each.images / images if term.per_image else 1.0)
                for term in (TERMS[name] for name in terms)
            ]
            for each in points
        ]
    )


def _separable(points: Sequence[Point], images: float) -> tuple[str, ...]:
    """The terms whose coefficients these points can separate. All other terms are 0 or proportional
    to the term `computation` in all points."""
    amounts = _amounts(points, tuple(TERMS), images)
    shares = amounts / amounts[:, :1]
    return tuple(
        name
        for place, name in enumerate(TERMS)
        if place == 0 or shares[:, place].max() > shares[:, place].min()
    )


def _shared(first: int, left: int, right: int) -> float:
    """Number of doublings, counted from `first` workers (the fewest), that the random walks to
    `left` and to `right` workers have in common; 0 if `left` or `right` is below `first`.
    """
    return max(0.0, math.log2(min(left, right) / first))


def _covariance(points: Sequence[Point], walk: Array, noise: Array) -> Array:
    """[draw, point, point] covariance of the logarithms of measured times. `walk` and `noise`: for
    each draw, the variance of the change of the drift at a doubling, and the variance of the noise.
    """
    import numpy as np

    first = points[0].workers
    doublings = np.array([[_shared(first, a.workers, b.workers) for b in points] for a in points])
    return np.asarray(walk[:, None, None] * doublings + noise[:, None, None] * np.eye(len(points)))


def _drawn(density: Callable[[Array], Array], start: Array, random: np.random.Generator) -> Array:
    """Draw from a distribution by stretch moves: each walker of one half moves along the line
    through itself and a random walker of the other half."""
    import numpy as np

    walkers, dimensions = start.shape
    halves = [start[: walkers // 2], start[walkers // 2 :]]
    heights = [density(half) for half in halves]
    kept = []
    for step in range(STEPS):
        for own, other in ((0, 1), (1, 0)):
            count = len(halves[own])
            stretch = (1 + random.random(count)) ** 2 / 2  # density 1 / sqrt(z) on [1/2, 2]
            partners = halves[other][random.integers(len(halves[other]), size=count)]
            proposed = partners + stretch[:, None] * (halves[own] - partners)
            height = density(proposed)
            gain = (dimensions - 1) * np.log(stretch) + height - heights[own]
            taken = np.log(random.random(count)) < gain
            halves[own] = np.where(taken[:, None], proposed, halves[own])
            heights[own] = np.where(taken, height, heights[own])
        if step >= STEPS // 3 and step % KEPT_EVERY == 0:
            kept += halves
    return np.concatenate(kept)
