"""The summary: sentences that claim no more than the intervals show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any, Literal

from raysuite.records import Row, RunFigures
from raysuite.records.names import workers_name
from raysuite.records.rows import same_work
from raysuite.records.statistics import (
    FEWEST_EPOCHS,
    FEWEST_REPEATS,
    caveat_level,
    outlying,
    slow_start,
)
from raysuite.report import text
from raysuite.report.facets import WORK, telling, written
from raysuite.spec.loaders import LOADER_OPTIONS


@dataclass(frozen=True)
class Sentence:
    """One statement: a result, a caveat on results, or a problem."""

    kind: Literal["result", "caveat", "problem"]
    text: str


MOST_FAILURES = 4


def summarize_rows(rows: Sequence[Row], runs: Sequence[RunFigures]) -> list[Sentence]:
    """Results, then caveats, then problems. Names omit the parts that all variants share."""
    said = [*fastest(rows), *_scaling(rows), *_caveats(rows, runs), *_problems(runs)]
    short = short_names([row.name for row in rows])
    # longest first: a name may be the beginning of another
    names = re.compile("|".join(map(re.escape, sorted(short, key=len, reverse=True))) or r"(?!)")
    return [Sentence(each.kind, names.sub(lambda m: short[m[0]], each.text)) for each in said]


def _scaling(rows: Sequence[Row]) -> list[Sentence]:
    workers = {row.name: row.workers for row in rows}
    scaled = [
        row
        for row in rows
        if row.speed_up and not row.is_baseline and row.workers > workers[str(row.baseline)]
    ]
    if not scaled:
        return []
    best = max(scaled, key=lambda row: row.efficiency.value if row.efficiency else 0.0)
    speed_up = best.speed_up
    assert speed_up is not None
    said = (
        f"Highest parallel efficiency ({best.scaling} scaling): {best.name} with E = "
        f"{text.ratio(best.efficiency)}, a speed-up of {text.ratio(speed_up)} against its "
        f"baseline {best.baseline}."
    )
    if speed_up.low is None:
        return [Sentence("result", f"{said} n = 1: no interval.")]
    if len(scaled) > 1:
        said += (
            " Because it was selected as the highest, the intervals are wide enough that the 95 % "
            "level holds for all rows together."
        )
    if not speed_up.differs_from_one:
        said += " The speed-up is not shown to differ from 1."
    return [Sentence("result", said)]


def _about(before: str, names: Iterable[str], after: str = ".") -> list[str]:
    """One sentence that lists the names; an empty list without names."""
    found = list(names)
    return [f"{before}{text.listed(found)}{after}"] if found else []


def _shares(found: Mapping[str, float], variants: int, what: str = "variants") -> list[str]:
    """`ddp (12%)`; `all 4 variants (12% to 30%)` if every variant is listed."""
    if len(found) == variants > 1:
        ends = dict.fromkeys(f"{pick(found.values()):.0%}" for pick in (min, max))
        return [f"all {variants} {what} ({' to '.join(ends)})"]
    return [f"{name} ({share:.0%})" for name, share in found.items()]


def _caveats(rows: Sequence[Row], runs: Sequence[RunFigures]) -> list[Sentence]:
    without = {r.baseline for r in rows if r.baseline and r.throughput and r.speed_up is None}
    uncompared = {run.variant for run in runs if run.verdict and run.verdict.tolerance is None}
    overflowed = {run.name: sum(each.skipped_steps for each in run.epochs) for run in runs}
    pruned = sum(run.status == "pruned" for run in runs)
    slow = {
        run.variant
        for run in runs
        if (begun := run.started) and begun.over_tcp and begun.environment.get("infiniband")
    }
    said = [
        *_about(
            "Efficiency above 1: ",
            [row.name for row in rows if row.superlinear],
            ". Look at the baseline first: a cold cache, a busy machine or a smaller batch per "
            "worker can make it slow.",
        ),
        *_about(
            "Baselines that have no speed, or train a different number of parameters, so no "
            "speed-up is given relative to them: ",
            sorted(without),
        ),
        *_about(
            "Variants whose weights were not compared with those of one process, because their "
            "strategy has no exact form: ",
            sorted(uncompared),
        ),
        *_about(
            "Numbers of steps that were skipped because gradients overflowed in fp16: ",
            [f"{name} ({steps})" for name, steps in overflowed.items() if steps],
        ),
        *_about(
            "Variants with random tensors in place of the data set, so their speeds are upper "
            "limits, and their losses and validations have no meaning: ",
            [row.name for row in rows if row.loader == "synthetic"],
        ),
        *_about(
            "",
            [f"{text.count(pruned, 'run')} of {len(runs)}"] if pruned else [],
            " stopped early by the sweep's scheduler.",
        ),
        *_by_trial(runs),
        *_busy(runs),
        *_spread(rows),
        *_apart(rows),
        *_unsettled(rows),
        *_left_out(runs),
        *_about(
            "Gradients were sent between hosts by TCP, although the hosts have InfiniBand: ",
            sorted(slow),
        ),
        *_about(
            "The runs come from environments that differ in ",
            differing([run.started.environment for run in runs if run.started]),
            ": their figures may not be comparable.",
        ),
    ]
    return [Sentence("caveat", sentence) for sentence in said]


def _by_trial(runs: Sequence[RunFigures]) -> list[str]:
    found = {run.variant: run for run in runs if run.batch is not None}
    said = [f"{name}: {run.batch.words}" for name, run in found.items() if run.batch]
    if not said:
        return []
    free = any(run.batch and run.batch.key == "training.batch_per_worker" for run in found.values())
    end = " If batch sizes differ, so do the steps and the trained weights." if free else ""
    return [f"{'; '.join(said)}.{end}"]


BUSY = 0.25
"""Other programs are reported if they used at least this share of all cores of the machine."""
CROWDED = 0.1
"""Other programs are also reported if no cores were free and these programs used at least this
share of the workers' cores. Throughputs were 4 % lower below this share, and 17 % lower above it
(docs/explanation/method.md)."""


def share_of_others(run: RunFigures, beside: float = 0.0) -> float | None:
    """The share of the machine's cores that other programs kept busy during training; None if it is
    not known, or too small to be reported. `beside`: cores of these programs that do not count."""
    cpu = run.started.environment.get("cpu", {}) if run.started else {}
    cores = cpu.get("logical_cores")
    # Ray tasks that load data are counted as other processes
    needs_ray = LOADER_OPTIONS[run.plan["spec"]["loader"]["name"]].needs_ray
    if not cores or not run.other_cores or needs_ray:
        return None
    others = max(0.0, run.other_cores - beside)
    share = others / cores
    own = min(cores, run.workers * run.plan["spec"]["resources"]["cpus_per_worker"])
    taken_from_them = (others - (cores - own)) / own
    return share if share >= BUSY or taken_from_them >= CROWDED else None


def busy(shares: Mapping[str, float], among: int, what: str = "variants") -> list[str]:
    """A sentence on those of all variants or trials that other programs may have slowed, by their
    `share_of_others`; an empty list without any."""
    return _about(
        "Other programs kept cores busy during training; in brackets, their share of all cores: ",
        _shares(shares, among, what),
    )


def _busy(runs: Sequence[RunFigures]) -> list[str]:
    """Runs during which other programs kept the machine busy."""
    taken: dict[str, float] = {}
    for run in runs:
        if (share := share_of_others(run)) is not None:
            taken[run.variant] = max(share, taken.get(run.variant, 0.0))
    return busy(taken, len({run.variant for run in runs}))


WIDE_SPREAD = 0.1
"""The standard deviation of a row's throughputs is reported if it is at least this share of their
mean."""


def _spread(rows: Sequence[Row]) -> list[str]:
    wide = {
        row.name: spread
        for row in rows
        if (stat := row.throughput) is not None
        and stat.n > 1
        and (spread := stdev(stat.values) / stat.mean) >= WIDE_SPREAD
    }
    return _about(
        "Variants whose throughput has, over the repeats, a standard deviation of "
        f"{WIDE_SPREAD:.0%} of the mean or more: ",
        _shares(wide, len(rows)),
        ". A busy or throttled machine can cause this.",
    )


def _apart(rows: Sequence[Row]) -> list[str]:
    import numpy as np

    repeated = [
        (row.name, np.array(stat.values))
        for row in rows
        if (stat := row.throughput) is not None and stat.n >= FEWEST_REPEATS
    ]
    level = caveat_level(len(repeated))
    named = [
        f"{name} ({values[far][0]:,.0f})"
        for name, values in repeated
        if (far := outlying(values, level)).any()
    ]
    return _about(
        "Repeats whose throughput is an outlier by Grubbs' test: ",
        named,
        ". They are still included in every mean.",
    )


def _unsettled(rows: Sequence[Row]) -> list[str]:
    """Runs whose first epoch after the warm-up was slower than their later epochs."""
    speeds = {row.name: found for row in rows if (found := _epoch_speeds(row)) is not None}
    starts = {name: slow_start(each, caveat_level(len(speeds))) for name, each in speeds.items()}
    named = [f"{name} (by {float(share):.0%})" for name, (slow, share) in starts.items() if slow]
    return _about(
        "Variants that were slower in the first epoch after the warm-up than on average in the "
        "later epochs: ",
        named,
        ". Set measure.warmup_steps to a larger number to leave such epochs out.",
    )


def _epoch_speeds(row: Row) -> Any:
    """An array [runs, epochs] of images per second after the warm-up, without runs that have fewer
    than FEWEST_EPOCHS such epochs; None if no run is left."""
    import numpy as np

    found = [
        [e.steady_images / e.steady_seconds for e in run.epochs if e.steady_seconds > 0]
        for run in row.counted
    ]
    found = [speeds for speeds in found if len(speeds) >= FEWEST_EPOCHS]
    most = max(map(len, found), default=0)
    return np.array([[*s, *[np.nan] * (most - len(s))] for s in found]) if found else None


def _left_out(runs: Sequence[RunFigures]) -> list[str]:
    """Sentences on samples that were left out and on other missing data, with the names of the
    variants."""
    variants: dict[str, list[str]] = {}
    for run in runs:
        name = run.plan["spec"]["data"]["name"]
        parts = [
            f"{each.skipped:,} of {each.samples:,} {each.split} samples"
            for each in run.skipped
            if each.skipped
        ]
        said = []
        if parts:
            said.append(f"Unreadable samples left out of {name}: {' and '.join(parts)}")
        for each in run.skipped:
            if each.lacking:
                said.append(f"{each.split} of {name} lacks {text.listed(list(each.lacking))}")
        for sentence in said:
            variants.setdefault(sentence, []).append(run.variant)
    return [
        f"{said} (in {text.listed(list(dict.fromkeys(names)))}). All figures are "
        "computed without them."
        for said, names in variants.items()
    ]


def _problems(runs: Sequence[RunFigures]) -> list[Sentence]:
    caught = {run.variant for run in runs if run.gate == "failed"}
    unchecked = {r.variant for r in runs if r.gate == "not checked" and r.status == "finished"}
    failed = [run for run in runs if run.status == "failed" and run.gate != "failed"]
    diverged = [run for run in failed if run.diverged_at is not None]
    failed = [run for run in failed if run.diverged_at is None]
    missing = sum(run.status == "missing" for run in runs)
    said = [
        *_about(
            "The gate failed for ",
            sorted(caught),
            ": the arithmetic of the training is wrong, and no speed is reported.",
        ),
        *_about(
            "No result of the gate is recorded for ",
            sorted(unchecked),
            ", so no speed is reported.",
        ),
        *_about(
            "Diverged (losses or weights were not finite): ",
            [f"{run.name} (step {run.diverged_at})" for run in diverged],
            ". Their throughputs include the diverged steps; their validations and times to a "
            "target are not reported.",
        ),
        *(f"{r.name} failed ({r.reason.splitlines()[0]})." for r in failed[:MOST_FAILURES]),
    ]
    if (more := len(failed) - MOST_FAILURES) > 0:
        said.append(f"{text.count(more, 'more run')} failed.")
    stopped = {run.name for run in runs if run.status == "stopped"}
    said += _about("", sorted(stopped), " stopped on request, and can be resumed.")
    if missing:
        said.append(f"{text.count(missing, 'run')} of {len(runs)} without a result so far.")
    return [Sentence("problem", sentence) for sentence in said]


def repeats_note(rows: Sequence[Row]) -> str:
    """How the intervals were computed, or why there are none."""
    counts = {stat.n for row in rows if (stat := row.throughput)}
    if not counts:
        return "No run has a speed so far."
    if counts == {1}:
        return "One run per variant; repeats would give intervals."
    least, most = min(counts), max(counts)
    repeats = f"{least}" if least == most else f"{least} to {most}"
    return f"Means over {repeats} repeats; [ ] are 95 % confidence intervals."


# The fastest row of those with the same work.

MOST_GROUPS = 8
SEPARATOR = " · "
"""Separates the parts of a name."""
NO_INTERVAL = "n = 1: no interval, so differences may be noise."


def fastest(rows: Sequence[Row]) -> list[Sentence]:
    """Sentences on the best variant of each group with the same work and number of workers."""
    groups = same_work(rows)
    works = {work: group[0] for (work, _), group in groups.items()}
    apart = telling(list(works.values()), always=WORK)
    names = {work: written(row, apart) for work, row in works.items()}
    said, alone = [], 0
    for (work, workers), group in sorted(
        groups.items(), key=lambda each: (names[each[0][0]], each[0][1])
    ):
        if len(group) == 1 and len(groups) > 1:
            alone += 1
            continue
        work_name = f"{names[work]}, " if len(works) > 1 else ""
        said.append(Sentence("result", f"{work_name}{workers_name(workers)}: {_best_of(group)}"))
    rest = len(said) - MOST_GROUPS
    said = said[:MOST_GROUPS]
    if rest > 0:
        said.append(Sentence("caveat", f"Only in the table: {text.count(rest, 'more group')}."))
    left = ""
    if 0 < alone < len(groups):
        left = (
            f"In {alone} of the {len(groups)} groups with the same network, data and number of "
            "workers, only one variant has a speed, so it is compared with no other variant."
        )
    elif alone and not any(row.speed_up and not row.is_baseline for row in rows):
        left = (
            "No two variants with a speed have the same network, data and number of workers, so "
            "nothing is compared."
        )
    return [*said, Sentence("result", left)] if left else said


def _best_of(group: Sequence[Row]) -> str:
    short = short_names([row.name for row in group])
    best = next((row for row in group if row.is_best), group[0])
    others = [row for row in group if row is not best]
    said = f"{short[best.name]} at {text.stat(best.throughput, single='')} {best.task.unit}/s"
    if not others:
        return f"{said}, the only variant with a speed here."
    said = f"the highest mean throughput is {said}."
    slower = [row for row in others if row.to_best and row.to_best.differs_from_one]
    close = sorted((row for row in others if row not in slower), key=_throughput, reverse=True)
    if all(row.throughput is not None and row.throughput.n == 1 for row in group):
        return f"{said} {NO_INTERVAL}"
    if not close:
        subject = "the other variant" if len(others) == 1 else f"all {len(others)} others"
        return f"{said} It is faster than {subject} (95 % confidence)."
    names = text.listed([short[row.name] for row in close])
    if not slower:
        return f"{said} It is not shown to differ from {names}."
    return (
        f"{said} It is faster than {len(slower)} of the {len(others)} others (95 % confidence), "
        f"and not shown to differ from {names}."
    )


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names without the parts and options that all of them share, if there are several names."""
    parts = {name: name.split(SEPARATOR) for name in names}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    short = {
        name: SEPARATOR.join(part for part in own if part not in shared) or name
        for name, own in parts.items()
    }
    shorter = text.without_shared_options(short.values())
    return {name: shorter[each] for name, each in short.items()}


def _throughput(row: Row) -> float:
    return row.throughput.mean if row.throughput else 0.0


# Environments.

MEMORY_SHARE = 0.05
"""Smaller relative differences of memory do not count: sizes of equal nodes differ slightly."""
OF_THE_PLAN = {"CUDA_VISIBLE_DEVICES", "HOROVOD_GLOO_IFACE", "OMP_NUM_THREADS"}
"""Variables that Ray and raysuite set for each worker, according to the plan of its run."""


def differing(environments: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the facts in which environments differ. A fact that an environment does not record
    is not a difference.

    Host names, jobs, folders and times are left out, because they differ within one run.
    """
    names = {name for each in environments for name in each.get("variables") or {}} - OF_THE_PLAN
    told = [_facts(each) | _variables(each, sorted(names)) for each in environments]
    kinds = dict.fromkeys(kind for facts in told for kind in facts)
    found = [
        kind
        for kind in kinds
        if len({facts[kind] for facts in told if facts.get(kind) is not None}) > 1
    ]
    sizes = [size for each in environments if (size := each.get("memory_bytes"))]
    if sizes and min(sizes) < max(sizes) * (1 - MEMORY_SHARE):
        found.append("memory")
    return found


def _facts(environment: dict[str, Any]) -> dict[str, Any]:
    cpu, source = environment.get("cpu") or {}, environment.get("source") or {}
    return {
        "hardware or versions": environment.get("fingerprint"),
        "usable cores": cpu.get("usable_cores"),
        "logical cores": cpu.get("logical_cores"),
        "raysuite's commit": source.get("commit"),
        "uncommitted changes to raysuite": source.get("dirty"),
        "image": json.dumps(environment["image"]) if "image" in environment else None,
    }


def _variables(environment: dict[str, Any], names: Sequence[str]) -> dict[str, str]:
    variables = environment.get("variables")
    return {} if variables is None else {name: variables.get(name, "") for name in names}
