"""Throughput of one variant over results folders of different dates, commits and versions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

from raysuite.records.derive import RunFigures, results_figures
from raysuite.records.journal import Results
from raysuite.records.names import current_spec, variant_key
from raysuite.records.rows import make_rows
from raysuite.records.statistics import LEVEL, Ratio, Stat, ratio_of_means, summarize


@dataclass(frozen=True)
class Point:
    """A variant in one results folder."""

    folder: str
    time: float
    """When the first run of the folder began, in seconds since 1970."""
    version: str
    commit: str
    """Commit of raysuite's own code; empty if unknown."""
    throughput: Stat
    """Mean throughput over the repeats, in images (or another unit) per second."""
    unit: str = "images"
    """The unit that the throughput counts."""
    change: Ratio | None = None
    """Throughput after a change at this folder / throughput before it; None without a change."""


@dataclass(frozen=True)
class History:
    """A variant on one kind of hardware, from the oldest folder to the newest."""

    name: str
    hardware: str
    points: tuple[Point, ...]
    by_runs: bool
    """Whether changes were looked for between single runs, not between folders, because there are
    too few folders to estimate the spread between them. Any drift between two folders then counts
    as a change."""


PLACES = 0.8
"""Part of the error probability, as a share, that is spent on the tests for a division at one
point; the rest is spent on the tests of segments between two points."""


def histories(folders: Iterable[Results]) -> list[History]:
    """The history of every variant that has a throughput in two folders or more."""
    series: dict[tuple[str, str], list[tuple[str, Point]]] = {}
    for results in folders:
        for row in make_rows(results_figures(results)):
            started = next((run.started for run in row.runs if run.started is not None), None)
            if row.throughput is None or row.diverged or started is None:
                continue
            key = _without_names(row.runs[0]), hardware_of(started.environment)
            environment = started.environment
            source = environment.get("source") or environment.get("git") or {}
            point = Point(
                folder=str(results.folder),
                time=started.time,
                version=str((environment.get("versions") or {}).get("raysuite", "")),
                commit=str(source.get("commit") or "")[:10],
                throughput=row.throughput,
                unit=row.task.unit,
            )
            series.setdefault(key, []).append((row.name, point))
    found = []
    for (_, hardware), members in series.items():
        members.sort(key=lambda each: each[1].time)
        points = [point for _, point in members]
        if len(points) > 1:
            by_runs = len(points) < 4
            changed = _changes(points, LEVEL, by_runs)
            found.append(History(members[-1][0], hardware, tuple(changed), by_runs))
    return found


def hardware_of(environment: dict[str, Any]) -> str:
    """The number of logical cores, the processor's model, and the number of GPUs of each model, as
    text."""
    cpu = environment.get("cpu") or {}
    gpus = [gpu.get("name", "GPU") for gpu in environment.get("gpus") or []]
    cores = f"{cpu.get('logical_cores')} x {cpu.get('model')}"
    return ", ".join([cores, *(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))])


def _without_names(run: RunFigures) -> str:
    """A key of the variant that does not depend on the experiment's name and description."""
    spec = current_spec({**run.plan["spec"], "name": "x", "description": ""})
    return variant_key({**run.plan, "spec": spec})


def _changes(points: Sequence[Point], level: float, by_runs: bool) -> list[Point]:
    """Find changes by binary segmentation (Scott and Knott 1974, Biometrics 30:507).

    A series is divided at the point where the ratio of its two parts is most significant. The
    ratio's interval has to exclude 1, at a simultaneous level for all points (Bonferroni). Both
    parts are then divided in the same way. If no point is significant, a segment between two points
    is compared with the rest. Each part has at least two values: means of folders, or single runs.
    A change is the ratio of two neighbouring parts' throughputs, with its simultaneous interval.
    """
    strict = 1 - (1 - level) * PLACES / max(1, len(points) - 1)
    ends = [0, *_places(points, strict, by_runs), len(points)]
    changed = list(points)
    for begin, place, end in zip(ends, ends[1:], ends[2:], strict=False):
        ratio = _ratio(points[begin:place], points[place:end], strict, by_runs)
        changed[place] = replace(points[place], change=ratio)
    return changed


def _places(points: Sequence[Point], level: float, by_runs: bool) -> list[int]:
    tested = (
        (_certainty(_ratio(points[:place], points[place:], level, by_runs)), place)
        for place in range(1, len(points))
    )
    certainty, best = max(tested, default=(0.0, 0))
    ends = [best] if certainty else _stretch(points, level, by_runs)
    if not ends:
        return []
    found: list[int] = []
    for begin, end in pairwise([0, *ends, len(points)]):
        found += [begin + n for n in _places(points[begin:end], level, by_runs)]
    return sorted([*found, *ends])


def _stretch(points: Sequence[Point], level: float, by_runs: bool) -> list[int]:
    """Begin and end of the segment that differs most from all other points, such as a regression
    that was later repaired. Empty if no segment differs significantly at a simultaneous level for
    all segments (circular binary segmentation: Olshen et al. 2004, Biostatistics 5:557)."""
    least = 1 if by_runs else 2
    pairs = list(combinations(range(least, len(points) - least + 1), 2))
    # `level` is for one division; the error probability left by PLACES is divided among the pairs
    strict = 1 - (1 - level) * (1 / PLACES - 1) * (len(points) - 1) / max(1, len(pairs))
    tested = (
        (_certainty(_ratio([*points[:a], *points[b:]], points[a:b], strict, by_runs)), [a, b])
        for a, b in pairs
    )
    none: tuple[float, list[int]] = (0.0, [])
    certainty, best = max(tested, default=none)
    return best if certainty else []


def _certainty(ratio: Ratio | None) -> float:
    """|log ratio| / half width of its interval; 0 if the interval contains 1, infinite if the
    interval has no width, as for copies of the same folders."""
    if ratio is None or ratio.low is None or not ratio.differs_from_one:
        return 0.0
    width = math.log(ratio.value / ratio.low)
    return abs(math.log(ratio.value)) / width if width else math.inf


def _ratio(
    before: Sequence[Point], after: Sequence[Point], level: float, by_runs: bool
) -> Ratio | None:
    values = [
        [v for point in part for v in (point.throughput.values if by_runs else [_mean(point)])]
        for part in (after, before)
    ]
    above, below = summarize(values[0]), summarize(values[1])
    if above is None or below is None or min(above.n, below.n) < 2:
        return None
    return ratio_of_means(above, below, level)


def _mean(point: Point) -> float:
    return point.throughput.mean
