"""Check a site: compare the throughputs of a fixed suite with those of earlier checks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from raysuite.records.derive import results_figures
from raysuite.records.history import hardware_of
from raysuite.records.journal import Results
from raysuite.records.node_checks import NodeFigures, slow_nodes
from raysuite.records.rows import make_rows
from raysuite.spec.base import Frozen

FILE = "check.json"


@dataclass(frozen=True)
class Published:
    """A published throughput of ResNet-50 with DDP on random images of 224 x 224 pixels."""

    gpu: str
    """Text that occurs in the GPU's name."""
    images_per_s: float
    """Throughput of one GPU."""
    source: str


PUBLISHED = (
    # measured in fp32, with 512 images per GPU from a DataLoader with two processes; bf16 is faster
    Published("GH200", 980.0, "github.com/eth-cscs/cscs-reframe-tests pytorch_test_base.py"),
)


def published(hardware: str) -> Published | None:
    """The published throughput for the GPUs that `hardware` names."""
    return next((each for each in PUBLISHED if each.gpu in hardware), None)


class SiteCheck(Frozen):
    """The results of one check."""

    when: float
    """Seconds since 1970."""
    hardware: str
    workers: int
    throughputs: dict[str, float]
    """Throughput by variant, over all workers."""
    failed: list[str] = Field(default_factory=list)
    """Variants without a throughput."""


class Verdict(Frozen):
    """The result of checking one figure."""

    what: str
    value: float
    reference: float | None = None
    """The value with which `value` is compared; None if there is none yet."""
    source: str = ""
    ok: bool = True


def site_check(results: Results, when: float) -> SiteCheck:
    """Make a SiteCheck from the results of a suite whose runs have equal numbers of workers."""
    rows = make_rows(results_figures(results))
    started = [run.started for row in rows for run in row.runs if run.started is not None]
    speeds = {row.name: row.throughput for row in rows}
    return SiteCheck(
        when=when,
        hardware=hardware_of(started[0].environment) if started else "",
        workers=max((int(plan["workers"]) for plan in results.plans()), default=0),
        throughputs={name: speed.mean for name, speed in speeds.items() if speed is not None},
        failed=[name for name, speed in speeds.items() if speed is None],
    )


def earlier_checks(folder: Path, now: SiteCheck) -> tuple[list[SiteCheck], list[Path]]:
    """A site's checks that are older than `now` and have the same hardware and number of workers;
    and the files that could not be read as a check."""
    found, damaged = [], []
    for file in sorted(folder.glob(f"*/{FILE}")):
        try:
            check = SiteCheck.model_validate_json(file.read_bytes())
        except ValueError:
            damaged.append(file)
            continue
        if (check.hardware, check.workers) == (now.hardware, now.workers) and check.when < now.when:
            found.append(check)
    return found, damaged


def judge(
    now: SiteCheck,
    earlier: Sequence[SiteCheck],
    nodes: Sequence[NodeFigures],
    tolerance: float,
    expected: float | None,
    known: Published | None = None,
) -> list[Verdict]:
    """One verdict for each comparison of a throughput with a reference value, and a passed verdict
    for each throughput without any reference value; also a failed verdict for each variant without
    a throughput, each slow figure of a node, and each node that fell back to sockets. `expected` is
    the throughput that the user expects of one worker; if given, it replaces the published
    throughput `known`.

    A throughput fails if it is below (1 - tolerance) * a reference value. The reference values are
    the median of earlier checks, and the number of workers * `expected` or `known`.
    """
    found = [Verdict(what=name, value=0.0, source="no throughput", ok=False) for name in now.failed]
    for name, value in now.throughputs.items():
        before = [each.throughputs[name] for each in earlier if name in each.throughputs]
        references: list[tuple[float | None, str]] = []
        if expected is not None:
            references.append((expected * now.workers, "expected"))
        elif known is not None:
            references.append((known.images_per_s * now.workers, known.source))
        if before or not references:
            source = f"median of {len(before)} earlier checks" if before else "the first check"
            references.append((statistics.median(before) if before else None, source))
        for reference, source in references:
            ok = reference is None or value >= (1 - tolerance) * reference
            found.append(Verdict(what=name, value=value, reference=reference, source=source, ok=ok))
    found += [
        Verdict(what=f"{each.host} {each.check}", value=each.value, reference=each.median,
                source="median of the nodes", ok=False)
        for each in slow_nodes(nodes)
    ]  # fmt: skip
    fallen = [row for row in nodes if row.fell_back]
    found += [Verdict(what=f"{row.host} sockets", value=1, source=f"has {', '.join(row.networks)}",
                      ok=False) for row in fallen]  # fmt: skip
    return found
