"""Explain each row of a report: the shares of its time by term, its bottleneck, and a suggestion.

Shares come from measurements (the profile, waits for the loader, other programs' use of the
processors) and from the schedule of a pipeline. Other shares are computed from a calibration or
other rows. The limit of a term is the throughput that would be reached if the term took no time.
Computation has no limit.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raysuite.perf.calibration import Calibration
from raysuite.perf.costs import by_kind, epoch_terms, fused_bytes, work_name
from raysuite.records import Row, RunFigures
from raysuite.spec.schedules import bubble, timeline
from raysuite.spec.strategies import STRATEGY_OPTIONS

Term = Literal[
    "loader",
    "computation",
    "computation or communication",
    "exposed communication",
    "overhead of a step",
    "bubble",
    "imbalance",
    "straggler",
    "other programs",
]
Idle = Mapping[str, tuple[float, float]]
"""Run id of a pipeline -> shares of its time lost to the bubble and to stages of unequal length."""


_NAMED = 0.05
"""A script's slowest rank is named if other ranks wait for it for at least this share of the time.
"""


@dataclass(frozen=True)
class Explained:
    """The explanation of one row."""

    name: str
    unit: str
    """The unit that the throughput counts: images, samples or tokens."""
    throughput: float
    shares: dict[Term, float]
    """Term -> share of the time; the term `binding` is first. The rest of the time is
    `computation`, or `computation or communication` if the measurements do not separate the two."""
    binding: Term
    """The term with the largest share."""
    first: str
    """The suggestion; empty if there is none, or if another row has already measured it."""
    evidence: str
    """The sources of the shares."""

    def limit(self, term: Term) -> float | None:
        """Throughput if this term took no time; None for computation, which cannot be left out."""
        if term in ("computation", "computation or communication"):
            return None
        left = 1 - self.shares[term]
        return self.throughput / left if left > 0 else math.inf


def explain(
    rows: Sequence[Row], calibration: Calibration | None = None, idle: Idle | None = None
) -> list[Explained]:
    """Explain each row that has a throughput."""
    steps = _steps_by_batch(rows)
    most: dict[str, int] = {}
    for row in rows:
        most[row.series_key] = max(row.workers, most.get(row.series_key, 0))
    return [
        _explained(row, steps[_without_batch(row)], most[row.series_key], calibration, idle or {})
        for row in rows
        if row.throughput is not None
    ]


def _explained(
    row: Row,
    steps: Mapping[float, float],
    most_workers: int,
    calibration: Calibration | None,
    idle: Idle,
) -> Explained:
    assert row.throughput is not None
    run = row.timed[0]
    shares: dict[Term, float] = {}
    evidence = ["waits for the loader"]
    wait = row.data_wait_share.mean if row.data_wait_share else 0.0
    if run.shares is not None:
        evidence.append("profile")
        exposed = run.shares.communication_exposed
        slowest = run.shares.slowest
        shares["loader"] = max(wait, run.shares.data_exposed[slowest])
        shares["exposed communication"] = exposed[slowest]
        others = [each for rank, each in enumerate(exposed) if rank != slowest]
        if others:
            shares["straggler"] = max(0.0, statistics.median(others) - exposed[slowest])
            if run.script is not None and shares["straggler"] >= _NAMED:
                evidence.append(f"rank {slowest} waits least for the others")
    else:
        shares["loader"] = wait
    if run.script is not None and (nodes := len(run.script.starts_by_host)) > 1:
        evidence.append(f"{nodes} nodes")
    shares["other programs"] = _other_programs(run, min(1.0, sum(shares.values())))
    strategy = run.plan["spec"]["strategy"]
    apart = run.workers == 1 or run.shares is not None
    if strategy.get("stages"):
        apart = True
        evidence.append("schedule")
        shares["bubble"], shares["imbalance"] = idle.get(run.run_id) or (_bubble(run), 0.0)
    else:
        derived: dict[Term, float]
        if calibration is not None and not calibration.unseen(run.plan):
            evidence.append("calibration")
            derived = _by_model(run, calibration, profiled=run.shares is not None)
        else:
            evidence.append("other rows")
            derived = _by_peers(row, steps, shares)
        apart = apart or "exposed communication" in derived
        # derived shares are shares of the time that is not covered by measured terms
        left, wanted = max(0.0, 1 - sum(shares.values())), sum(derived.values())
        shares |= {
            term: share * min(1.0, left / wanted) for term, share in derived.items() if wanted
        }
    shares = {term: share for term, share in shares.items() if share > 0}
    if (whole := sum(shares.values())) > 1:
        shares = {term: share / whole for term, share in shares.items()}
    rest: Term = "computation" if apart else "computation or communication"
    shares[rest] = max(0.0, 1 - sum(shares.values()))
    # among equal shares, prefer a term that can be changed
    binding = max(shares, key=lambda term: (round(shares[term], 2), term != rest))
    return Explained(
        name=row.name,
        unit=row.task.unit,
        throughput=row.throughput.mean,
        shares=dict(sorted(shares.items(), key=lambda item: (item[0] != binding, -item[1]))),
        binding=binding,
        first=_advice(binding, run, most_workers),
        evidence=", ".join(evidence),
    )


def _other_programs(run: RunFigures, waits: float) -> float:
    """Share of the processor time needed by the workers that other programs used. `waits`: the
    share of the time in which workers wait, and need no processor."""
    cores = _cores(run)
    wanted = run.workers * int(run.plan["spec"]["resources"]["cpus_per_worker"])
    if run.plan["device"] != "cpu" or cores is None or run.other_cores is None:
        return 0.0
    lacking = wanted * (1 - waits) + run.other_cores - cores
    return max(0.0, lacking) / wanted if run.other_cores > 0.1 else 0.0


def _cores(run: RunFigures) -> int | None:
    found = run.started.environment.get("cpu", {}) if run.started else {}
    return found.get("logical_cores")


def _bubble(run: RunFigures) -> float:
    """Share of the time in a pipeline's bubble, if stages are equal and transfers take no time."""
    options = STRATEGY_OPTIONS[run.plan["spec"]["strategy"]["name"]]
    strategy = options.model_validate(run.plan["spec"]["strategy"])
    schedule = strategy.pipeline(int(run.plan["accumulate"]))
    if schedule is None or schedule.asynchronous:
        return 0.0
    return bubble(timeline(schedule.operations()))


def _by_model(run: RunFigures, calibration: Calibration, profiled: bool) -> dict[Term, float]:
    """Shares of the measured time, computed from the times that a calibration predicts."""
    work = calibration.works[work_name(run.plan)]
    terms = epoch_terms(run.plan, work, calibration.workers_per_node)
    measured = run.epoch_units / (run.throughput or math.nan)
    kinds = by_kind(calibration.seconds.parts(terms))
    found: dict[Term, float] = {"overhead of a step": kinds.get("overhead", 0.0) / measured}
    if not profiled and run.workers > 1:
        found["exposed communication"] = kinds.get("communication", 0.0) / measured
    return found


def _by_peers(
    row: Row, steps: Mapping[float, float], known: Mapping[Term, float]
) -> dict[Term, float]:
    """Shares that are computed from rows that differ from `row` in one key. The overhead of a step
    is computed from the row with the largest batch per worker, if this batch is larger than that of
    `row`. The exposed communication is 1 - efficiency, relative to the baseline, which has fewer
    workers."""
    found: dict[Term, float] = {}
    if row.efficiency is not None and not row.is_baseline and "exposed communication" not in known:
        found["exposed communication"] = max(0.0, 1 - row.efficiency.value)
    own = row.global_batch / row.workers
    largest = max(steps)
    if largest > own:
        each = (steps[largest] - steps[own]) / (largest - own)
        fixed = 1 - max(0.0, each) * own / steps[own]
        # a step's communication, too, is independent of the number of images
        sent = max(known.get("exposed communication", 0.0), found.get("exposed communication", 0.0))
        found["overhead of a step"] = max(0.0, fixed - sent)
    return found


def _steps_by_batch(rows: Sequence[Row]) -> dict[str, dict[float, float]]:
    """Key of rows that differ only in batch size -> (images per worker -> seconds of a step)."""
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        if row.throughput is not None:
            steps = found.setdefault(_without_batch(row), {})
            steps[row.global_batch / row.workers] = row.global_batch / row.throughput.mean
    return found


def _without_batch(row: Row) -> str:
    """A key that is equal for rows that differ only in their batch size, and in keys that may
    depend on it (learning-rate schedule, optimiser, seed)."""
    spec = row.runs[0].plan["spec"]
    left_out = ("global_batch", "batch_per_worker")
    training = {key: each for key, each in spec["training"].items() if key not in left_out}
    alike = {**spec, "training": training, "seed": 0, "schedule": 0, "optimizer": 0}
    return json.dumps(alike, sort_keys=True)


_ADVICE_FOR_SCRIPTS: Mapping[Term, str] = {
    "loader": "a higher num_workers or pin_memory=True in the DataLoader, or data in memory",
    "exposed communication": (
        "a larger batch per worker, gradients in 16 bits, fewer workers, or a faster network"
    ),
    "computation or communication": "--profile, which separates computation from communication",
    "computation": "more workers, or a smaller network: nothing takes longer than computation",
}


def _advice(term: Term, run: RunFigures, most_workers: int) -> str:
    """A suggestion. `most_workers`: the largest number of workers among otherwise equal rows."""
    if run.script is not None and term == "straggler" and run.shares is not None:
        slowest = run.shares.slowest
        return (
            f"rank {slowest} on {run.script.hosts[slowest]}, for which others wait: check whether "
            "this rank has more work than the others, or a slower node"
        )
    if run.script is not None and term in _ADVICE_FOR_SCRIPTS:
        fewer = term == "exposed communication" and len(run.script.starts_by_host) > 1
        nodes = ", or workers on fewer nodes (--placement pack)" if fewer else ""
        return f"{_ADVICE_FOR_SCRIPTS[term]}{nodes}"
    spec = run.plan["spec"]
    strategy = spec["strategy"]
    match term:
        case "loader":
            return (
                "more loader threads or processes, another loader, or data in memory: `raysuite "
                "bench loaders` compares loaders"
            )
        case "exposed communication":
            traffic = run.costs.traffic if run.costs else None
            if traffic and run.plan["device"] == "gpu" and traffic.total <= fused_bytes(run.plan):
                return "smaller buckets (strategy.bucket_mb), so that they are reduced earlier"
            return (
                "a larger batch per worker, 16-bit gradients (strategy.compression), fewer "
                "workers, or a faster network"
            )
        case "overhead of a step":
            return "a larger batch per worker: the overhead of a step does not grow with the batch"
        case "bubble":
            return f"more micro-batches (now {run.plan['accumulate']}), or fewer stages"
        case "imbalance":
            return "strategy.partition: cut the network into stages that take equally long"
        case "straggler":
            return "the slowest worker's node: check its clock, its temperature, and other users"
        case "other programs":
            return (
                f"end the programs that keep {run.other_cores or 0:.1f} cores busy, then measure "
                "again"
            )
        case "computation or communication":
            options = STRATEGY_OPTIONS[strategy["name"]]
            profiled = "torch" in options.only.get("measure.profile", ("torch",))
            profile = ", or measure.profile=torch" if profiled else ""
            return (
                f"measure the same variant on one worker{profile}: this separates computation from "
                "communication"
            )
        case "computation":
            return _advice_on_computation(run, most_workers)


def _advice_on_computation(run: RunFigures, most_workers: int) -> str:
    spec, cores = run.plan["spec"], _cores(run)
    each = int(spec["resources"]["cpus_per_worker"])
    alone = "" if STRATEGY_OPTIONS[spec["strategy"]["name"]].distributed else " with strategy=ddp"
    idle = (cores or 0) - run.workers * each
    if run.plan["device"] == "cpu" and cores and idle > 0:
        are = "is" if idle == 1 else "are"
        if run.workers < (workers := cores // each) <= most_workers:
            return ""
        if workers > run.workers:
            what = f"resources.workers={workers}{alone}"
        else:
            what = f"resources.cpus_per_worker={cores // run.workers}"
        return f"{idle} of {cores} processors {are} idle: try {what}"
    if spec["training"]["precision"] == "fp32" and run.plan["device"] == "gpu":
        return "training.precision=bf16"
    if run.plan["device"] == "cpu" and cores:
        return f"more than these {cores} processors, or a smaller network"
    return f"more workers{alone}, or a smaller network: nothing takes longer than computation"
