"""The efficiency of published data-parallel systems on many workers, relative to ideal scaling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from raysuite.perf.scaling import Point, read_figures
from raysuite.report.against import FOLDER, published

AACH_PER_NODE = 4


class Reached(NamedTuple):
    """The efficiency of a published system on a number of workers."""

    efficiency: float
    """Throughput per worker / throughput per worker on the smallest published number of workers."""
    system: str
    workers: int
    """The number of workers with this efficiency: the requested number or, if it is larger than the
    largest published number, the latter."""


@cache
def aach2023() -> dict[str, list[Point]]:
    """The series of Aach et al. 2023, Table 2, by network and loader. Each GPU does the same amount
    of computation in a step, so the throughput is proportional to the number of GPUs times the
    share of the time in which they compute."""
    found: dict[str, list[Point]] = {}
    for each in published("aach2023").values:
        if each.quantity == "share_computation" and each.workers and each.value:
            name = f"{each.model} · {each.loader} · Aach et al. 2023"
            made = each.workers * 100 * each.value
            point = Point(each.workers, each.workers // AACH_PER_NODE, made)
            found.setdefault(name, []).append(point)
    return found


@cache
def others() -> dict[str, list[Point]]:
    """The series in report/published/scaling.csv: TensorFlow's performance guide on K80 GPUs
    (tensorflow/docs, site/en/r1/guide/performance/benchmarks.md), data parallelism on H100 GPUs in
    the Ultra-Scale Playbook (huggingface.co/spaces/nanotron/ultrascale-playbook, dp_scaling), and
    sharded training of MPT (mosaicml/llm-foundry, scripts/train/benchmarking/README.md)."""
    return read_figures(FOLDER / "scaling.csv")


def reached(workers: int) -> tuple[Reached, Reached]:
    """The lowest and the highest published efficiency on `workers` workers. If a system was
    measured only on fewer workers, its efficiency on its largest number of workers is used. The
    highest efficiency is taken only from systems that were measured on at least `workers` workers
    or, if there are none, from those that were measured on the most workers. Between two published
    numbers of workers, the efficiency is interpolated over the logarithm of the number."""
    found = [
        _reached(name, sorted(points), workers) for name, points in (aach2023() | others()).items()
    ]
    most = max(each.workers for each in found)
    return min(found), max(each for each in found if each.workers == most)


def _reached(name: str, points: Sequence[Point], workers: int) -> Reached:
    first = points[0]
    known = [
        (each.workers, each.throughput / each.workers / (first.throughput / first.workers))
        for each in points
    ]
    for (few, left), (many, right) in itertools.pairwise(known):
        if workers <= many:
            part = max(0.0, math.log(workers / few) / math.log(many / few))
            return Reached(left + part * (right - left), name, workers)
    return Reached(known[-1][1], name, known[-1][0])
