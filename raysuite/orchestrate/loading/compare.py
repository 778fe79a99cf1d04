"""A comparison of loaders from its plan to its records."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from raysuite.data import prepare
from raysuite.measure.environment import environment
from raysuite.orchestrate.loading.material import look
from raysuite.orchestrate.loading.rounds import Fact, measure
from raysuite.plan.loading import LoadingPlan
from raysuite.records.loading import Candidate, LoadingBench, Material
from raysuite.units import GIB, human_bytes

MOST_DECODED = 2 * GIB
"""Above, `memory` is tried only where it is asked for: each timing decodes the set anew."""


def compare(
    plan: LoadingPlan,
    folder: Path,
    threads: int,
    asked: bool,
    begun: Callable[[str, int], None],
    told: Callable[[Fact], None],
) -> LoadingBench:
    """Measure, and write what there is into `folder` after each timing.

    threads: what the set is read with before the first timing. asked: whether the loaders were
    named by the user. Raises DataError where the data set cannot be read at all.
    """
    prepared = prepare(plan.data, plan.facts)
    material = look(prepared, plan.split, threads)
    plan = plan.model_copy(
        update={"candidates": tuple(_excused(each, material, asked) for each in plan.candidates)}
    )
    bench = LoadingBench(
        name=plan.title,
        time=time.time(),
        plan=plan.model_dump(mode="json", exclude={"candidates"}),
        candidates=plan.candidates,
        environment=environment(),
        material=material,
    )
    bench.save(folder)
    for fact in measure(plan, prepared, folder / "messages.log", begun):
        bench = bench.grown(fact)
        bench.save(folder)
        told(fact)
    bench = bench.model_copy(update={"complete": True})
    bench.save(folder)
    return bench


def _excused(candidate: Candidate, material: Material, asked: bool) -> Candidate:
    """The candidate, with the reason why it cannot or should not be tried."""
    if candidate.kind == "decoding" and not material.encoded:
        return candidate.model_copy(update={"excuse": "the files hold bare pixels"})
    if asked or candidate.options.get("name") != "memory":
        return candidate
    size = material.pixel_bytes * material.samples
    if size <= min(MOST_DECODED, 0.5 * psutil.virtual_memory().available):
        return candidate
    excuse = f"left out: the decoded set takes about {human_bytes(size)}; --loader memory tries it"
    return candidate.model_copy(update={"excuse": excuse})
