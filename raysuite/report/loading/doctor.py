"""What bounds the best loader, and what to try: from the figures alone, and no more than they show.

The rules are tried from the top; the first that fits is told. A rule compares two figures by
their ratio; where the ratio's interval lies on both sides of the rule's bound, it says "probably".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raysuite.records import Ratio, Stat, ratio_of_means
from raysuite.records.loading import LoadingBench, LoadingRow, loading_rows, stage_shares
from raysuite.records.statistics import compared
from raysuite.report import text
from raysuite.report.loading import remedies

Bound = Literal[
    "nothing", "other programs", "reading", "threads", "waiting", "decoding", "resizing",
    "normalising", "work beside decoding",
]  # fmt: skip

NEAR = 0.8
"""A loader that reaches this share of a limit is bound by it."""
BUSY = 0.75
"""A loader that keeps this share of its threads' cores busy computes; below, it waits."""
QUIET = 0.25
"""Cores, as a share of all, that other programs may take before the figures are theirs as well."""


@dataclass(frozen=True)
class Diagnosis:
    """The bottleneck of the best loader."""

    best: str
    """The candidate's name; empty where no loader delivered anything."""
    rivals: tuple[str, ...]
    """Loaders that are not shown to be slower than the best."""
    bound: Bound | None
    certain: bool
    """Whether the interval of the figure that decided lies on one side of the rule's bound."""
    because: str
    advice: tuple[str, ...]

    def __str__(self) -> str:
        if not self.best:
            why = f": {self.because}" if self.because else ""
            return f"No loader delivered anything{why}."
        word = "is" if self.certain else "is probably"
        said = f"{self.best} {word} bound by {self.bound}: {self.because}."
        if self.rivals:
            said += f" Not shown to be slower: {text.listed(list(self.rivals))}."
        return f"{said} To try: {'; '.join(self.advice)}." if self.advice else said


def best_of(rows: Sequence[LoadingRow]) -> LoadingRow | None:
    """The loader with the highest mean throughput; `synthetic` loads nothing and is a limit."""
    loaders = [row for row in rows if _loads(row) and row.throughput]
    return max(loaders, key=_mean, default=None)


def rivals_of(best: LoadingRow, rows: Sequence[LoadingRow]) -> tuple[str, ...]:
    """Loaders that the intervals do not tell from the best, which was picked after the fact: all
    pairs hold together."""
    others = sorted(
        (row for row in rows if _loads(row) and row.throughput and row is not best),
        key=_mean,
        reverse=True,
    )
    stats = [row.throughput for row in (best, *others) if row.throughput and row.throughput.n > 1]
    slower: set[Stat] = set()
    if best.throughput in stats and len(stats) > 1:
        ratios, reaches = compared(stats)
        lows = (ratios - reaches)[0]
        slower = {stat for stat, low in zip(stats, lows, strict=True) if low > 0}
    return tuple(row.candidate.name for row in others if row.throughput not in slower)


def diagnose(bench: LoadingBench) -> Diagnosis:
    """What bounds the best loader of a comparison."""
    rows = loading_rows(bench)
    best = best_of(rows)
    if best is None:
        reasons = text.listed([f"{r.candidate.name}: {r.failure}" for r in rows if r.failure])
        return Diagnosis("", (), None, True, reasons, ())
    bound, certain, because = _bound(best, rows, bench)
    advice = remedies.advice(bound, best, rows, bench)
    name = best.candidate.name
    return Diagnosis(name, rivals_of(best, rows), bound, certain, because, advice)


Found = tuple[Bound, bool, str]


def _bound(best: LoadingRow, rows: Sequence[LoadingRow], bench: LoadingBench) -> Found:
    cpus = remedies.cpus(bench)
    cores = best.cores.mean if best.cores else 0.0
    others = best.others.mean if best.others else 0.0
    ceiling = next((row for row in rows if row.candidate.series == "synthetic"), None)
    width = min(best.candidate.width, cpus)
    if ceiling and ceiling.throughput and best.throughput:
        share = ratio_of_means(best.throughput, ceiling.throughput)
        if share and share.value >= NEAR:
            return (
                "nothing",
                _beyond(share),
                f"it reaches {text.ratio(share)} of the speed at which tensors are handed over "
                "that nobody loads",
            )
    if others > QUIET * cpus and cores + others > 0.9 * cpus:
        return (
            "other programs",
            True,
            f"they kept {others:.1f} of {cpus} cores busy meanwhile, and it got {cores:.1f}"
            + _by_processor(best, rows),
        )
    from_memory = best.candidate.options.get("name") == "memory"
    if not from_memory and best.of_reading and best.of_reading.value >= NEAR:
        return (
            "reading",
            _beyond(best.of_reading),
            f"it reaches {text.ratio(best.of_reading)} of reading the bytes alone, which "
            + _how_read(best, rows),
        )
    if cores < BUSY * width:
        return "waiting", True, _why_it_waits(best, cores, width)
    if width < cpus and remedies.widest(best, rows):
        return (
            "threads",
            True,
            f"it keeps {cores:.1f} cores busy with {best.candidate.width} at work, and {cpus} "
            "cores are there",
        )
    return _computing(best, bench)


def _by_processor(best: LoadingRow, rows: Sequence[LoadingRow]) -> str:
    """Processor time, which other programs change less than the wall clock."""
    width = best.candidate.width
    limit = next(
        (r for r in rows if r.candidate.kind == "decoding" and r.candidate.width == width), None
    )
    if limit is None or not limit.throughput or not limit.cores or not best.cores:
        return ""
    spent, bare = (1000 * r.cores.mean / _mean(r) for r in (best, limit) if r.cores)
    return (
        f"; an image takes it {text.number(spent)} ms of processor time, and bare decoding "
        f"{text.number(bare)} ms"
    )


def _computing(best: LoadingRow, bench: LoadingBench) -> Found:
    """Which of the stages it is that keeps the processor busy."""
    share = best.of_decoding
    name = best.candidate.options.get("name")
    if share and share.value >= NEAR and name != "memory":
        told = f"it reaches {text.ratio(share)} of bare decoding by as many threads"
        return "decoding", _beyond(share), told
    stages = stage_shares(bench)
    if name == "native" and stages:
        slowest = max(stages, key=lambda stage: stages[stage])
        total = sum(stages.values())
        parts = ", ".join(f"{stage} {text.percent(s / total)}" for stage, s in stages.items())
        told = f"of the time that an image takes one thread, {parts}"
        bounds: dict[str, Bound] = {
            "reading": "reading",
            "decoding": "decoding",
            "resizing": "resizing",
        }
        return bounds.get(slowest, "normalising"), True, told
    told = f"it reaches {text.ratio(share)} of bare decoding, " if share else ""
    return "work beside decoding", True, f"{told}and its cores are busy"


def _how_read(best: LoadingRow, rows: Sequence[LoadingRow]) -> str:
    width = best.candidate.width
    limit = next(
        (r for r in rows if r.candidate.kind == "reading" and r.candidate.width == width), None
    )
    busy = limit.cores.mean if limit and limit.cores else 0.0
    if busy < BUSY * width:
        return f"waits for the disk: it keeps {busy:.1f} cores busy"
    return "keeps its cores busy with opening and copying"


def _why_it_waits(best: LoadingRow, cores: float, width: int) -> str:
    told = f"{best.candidate.width} at work keep only {cores:.1f} of {width} cores busy"
    if best.of_reading and best.of_reading.value < 0.5:
        if best.candidate.series.endswith("processes"):
            return f"{told}, and reading is no limit: batches wait to be handed over"
        return f"{told}, and reading is no limit: threads wait for Python's lock, or for each other"
    return told


def _loads(row: LoadingRow) -> bool:
    return row.candidate.kind == "loader" and row.candidate.width > 0


def _mean(row: LoadingRow) -> float:
    return row.throughput.mean if row.throughput else 0.0


def _beyond(share: Ratio) -> bool:
    """Whether the whole interval lies beyond NEAR; False where there is none."""
    return share.low is not None and share.low >= NEAR
