"""Throughput of loaders: measurements of `raysuite bench loaders`, and derived figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from raysuite.files import write_whole
from raysuite.records.statistics import Ratio, Stat, ratio_of_means, summarize
from raysuite.spec.base import Strict

FILE = "loaders.json"


class Candidate(Strict):
    """What is to be timed: a loader with its options, or an upper limit for all loaders."""

    name: str
    """A name such as `native · 2 threads`, unique among the candidates."""
    kind: Literal["loader", "decoding", "reading"]
    """`decoding` (decoding alone) and `reading` (reading the bytes alone) are upper limits for all
    loaders."""
    series: str
    """The name without the number of threads."""
    width: int
    """Number of threads, processes or Ray tasks that load; 0 if nothing is loaded
    (`synthetic`)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The loader's options, as in a spec."""
    excuse: str = ""
    """Why the candidate is not timed; empty if it is."""


class Timing(Strict):
    """One timing of one candidate, after its warm-up, in a new process."""

    candidate: str
    repeat: int
    images: int
    seconds: float
    """Seconds of wall clock for these images."""
    cpu_seconds: float
    """Processor seconds of the candidate's processes during the timing."""
    machine_seconds: float
    """Processor seconds of all processes of the machine during the timing."""
    start_seconds: float
    """Seconds of wall clock from before the loader is made, including its imports, until its first
    images are ready."""


class Failure(Strict):
    """Why a candidate has no further timings."""

    candidate: str
    repeat: int
    reason: str


class Material(Strict):
    """Properties of the split's images, estimated from a sample."""

    samples: int
    image_bytes: float
    """Mean bytes of an encoded image."""
    pixel_bytes: float
    """Mean bytes of the decoded pixels of an image."""
    jpeg_share: float
    """Share of JPEGs; Pillow decodes other formats."""
    encoded: bool
    """Whether images are compressed; False if the files hold pixels."""
    augment: str
    """The random augmentation of each training image."""
    read_before: bool
    """Whether all images were read before the first timing, because they fit in the page cache."""


class LoadingBench(Strict):
    """All measurements of one call of `raysuite bench loaders`."""

    format: int = 1
    name: str
    """The data set, with its format on disk if the data set has several."""
    time: float
    """When the measurement began, in seconds since 1970."""
    plan: dict[str, Any]
    """The plain data of a `raysuite.plan.LoadingPlan`."""
    candidates: tuple[Candidate, ...]
    environment: dict[str, Any]
    material: Material | None = None
    timings: tuple[Timing, ...] = ()
    failures: tuple[Failure, ...] = ()
    complete: bool = False
    """Whether the measurement was completed; False while it runs, and if it was interrupted."""

    def grown(self, fact: Timing | Failure) -> LoadingBench:
        name = "timings" if isinstance(fact, Timing) else "failures"
        return self.model_copy(update={name: (*getattr(self, name), fact)})

    def save(self, folder: Path) -> Path:
        """Write FILE into `folder` atomically."""
        write_whole(folder / FILE, f"{self.model_dump_json(indent=1)}\n".encode())
        return folder / FILE


@dataclass(frozen=True)
class LoadingRow:
    """The figures of one candidate over its repeats."""

    candidate: Candidate
    throughput: Stat | None
    """Images/s."""
    cores: Stat | None
    """Processor seconds per second: the number of cores that the candidate keeps busy."""
    others: Stat | None
    """Number of cores that all other processes of the machine kept busy during the timing."""
    start_seconds: Stat | None
    of_decoding: Ratio | None
    """Throughput relative to decoding alone with the same number of threads."""
    of_reading: Ratio | None
    failure: str


def loading_rows(bench: LoadingBench) -> list[LoadingRow]:
    """A row for each candidate, in the order of the plan."""
    rates = {
        each.name: _stat(bench, each.name, lambda t: t.images / t.seconds)
        for each in bench.candidates
    }
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


def _others(timing: Timing) -> float:
    return max(0.0, timing.machine_seconds - timing.cpu_seconds) / timing.seconds


def _stat(bench: LoadingBench, name: str, figure: Any) -> Stat | None:
    places = [n for n, each in enumerate(bench.timings) if each.candidate == name]
    timings = [bench.timings[n] for n in places]
    # timings have no date, but their positions give the order
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
