"""How fast loaders are: what `raysuite bench loaders` measured, and the figures that follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from raysuite.files import write_whole
from raysuite.records.statistics import Ratio, Stat, ratio_of_means, summarize

FILE = "loaders.json"


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Candidate(_Fact):
    """One thing that is timed: a loader with its options, or a limit."""

    name: str
    """`native · 2 threads`; no two candidates share it."""
    kind: Literal["loader", "decoding", "reading"]
    """`decoding` and `reading` are the limits: decoding alone, and reading the bytes alone."""
    series: str
    """The name without the number of threads."""
    width: int
    """Threads, processes or Ray tasks that load; 0 where nothing is loaded (`synthetic`)."""
    options: dict[str, Any] = {}
    """The loader's options, as a spec has them."""
    excuse: str = ""
    """Why it is not tried; empty for what is."""


class Timing(_Fact):
    """One timing of one candidate, in processes of its own, after its warm-up."""

    candidate: str
    repeat: int
    images: int
    seconds: float
    """Wall clock of these images."""
    cpu_seconds: float
    """Processor time that the candidate's processes took meanwhile."""
    machine_seconds: float
    """Processor time that the whole machine took meanwhile."""
    start_seconds: float
    """Wall clock until the first images were there, imports of libraries included."""


class Failure(_Fact):
    """Why a candidate has no further timings."""

    candidate: str
    repeat: int
    reason: str


class Material(_Fact):
    """What the split is made of, from a look at some of its images."""

    samples: int
    image_bytes: float
    """Mean bytes of an encoded image."""
    pixel_bytes: float
    """Mean bytes of its pixels, decoded."""
    jpeg_share: float
    """Share of JPEGs; what is none is decoded by Pillow, if at all."""
    encoded: bool
    """False where the files hold bare pixels."""
    augment: str
    """What is drawn anew for each training image."""
    read_before: bool
    """Whether all of it was read once before the first timing, and fits in the page cache."""


class LoadingBench(_Fact):
    """All that one `raysuite bench loaders` measured."""

    format: int = 1
    name: str
    """The data set, and its format on disk where it has several."""
    time: float
    """When it began, in s since 1970."""
    plan: dict[str, Any]
    """The plain data of a `raysuite.plan.LoadingPlan`."""
    candidates: tuple[Candidate, ...]
    environment: dict[str, Any]
    material: Material | None = None
    timings: tuple[Timing, ...] = ()
    failures: tuple[Failure, ...] = ()
    complete: bool = False
    """False while it is measured, and where it was interrupted."""

    def grown(self, fact: Timing | Failure) -> LoadingBench:
        name = "timings" if isinstance(fact, Timing) else "failures"
        return self.model_copy(update={name: (*getattr(self, name), fact)})

    def save(self, folder: Path) -> Path:
        """Write FILE into `folder`; a reader never sees half of it."""
        write_whole(folder / FILE, f"{self.model_dump_json(indent=1)}\n".encode())
        return folder / FILE


@dataclass(frozen=True)
class LoadingRow:
    """The figures of one candidate over its repeats."""

    candidate: Candidate
    throughput: Stat | None
    """Images/s."""
    cores: Stat | None
    """Processor seconds per second: how many cores it keeps busy."""
    others: Stat | None
    """Cores that everything else on the machine kept busy meanwhile."""
    start_seconds: Stat | None
    of_decoding: Ratio | None
    """Throughput over that of decoding alone, and of reading alone, by as many threads."""
    of_reading: Ratio | None
    failure: str


def loading_rows(bench: LoadingBench) -> list[LoadingRow]:
    """A row for each candidate, in the order of the plan."""
    rates = {each.name: _stat(bench, each.name, _rate) for each in bench.candidates}
    failed = {each.candidate: each.reason for each in bench.failures}
    return [
        LoadingRow(
            candidate=each,
            throughput=rates[each.name],
            cores=_stat(bench, each.name, lambda t: t.cpu_seconds / t.seconds),
            others=_stat(bench, each.name, _others),
            start_seconds=_stat(bench, each.name, lambda t: t.start_seconds),
            of_decoding=_share(bench, rates, each, "decoding"),
            of_reading=_share(bench, rates, each, "reading"),
            failure=each.excuse or failed.get(each.name, ""),
        )
        for each in bench.candidates
    ]


def _rate(timing: Timing) -> float:
    return timing.images / timing.seconds


def _others(timing: Timing) -> float:
    return max(0.0, timing.machine_seconds - timing.cpu_seconds) / timing.seconds


def _stat(bench: LoadingBench, name: str, figure: Any) -> Stat | None:
    places = [n for n, each in enumerate(bench.timings) if each.candidate == name]
    timings = [bench.timings[n] for n in places]
    # a timing has no time of day, but they are in order
    rounds = [(each.repeat, float(n)) for n, each in zip(places, timings, strict=True)]
    return summarize((figure(each) for each in timings), rounds=rounds)


def _share(
    bench: LoadingBench, rates: dict[str, Stat | None], candidate: Candidate, kind: str
) -> Ratio | None:
    if candidate.kind != "loader":
        return None
    same = (
        rates[each.name]
        for each in bench.candidates
        if each.kind == kind and each.width == candidate.width
    )
    limit, rate = next(same, None), rates[candidate.name]
    return ratio_of_means(rate, limit) if rate and limit else None
