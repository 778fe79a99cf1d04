"""Load of the hosts during a run: a file of samples for each host, next to the journal.

RESULTS/runs/RUN_ID/system-HOST.jsonl has one SystemSample per line. SystemSamples are not Records:
MLflow shows them, but no figure is derived from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from raysuite.files import read_lines
from raysuite.spec.base import Frozen

_PREFIX, _SUFFIX = "system-", ".jsonl"


class GpuSample(Frozen):
    """One GPU of the host, by NVML; None for values that NVML does not report."""

    index: int
    """NVML's index."""
    busy: float | None
    """Share of NVML's last sample period in which a kernel ran, in [0, 1]."""
    memory_bytes: int | None
    memory_total_bytes: int | None
    watts: float | None


class SystemSample(Frozen):
    """One sample of a host. All values except `process_bytes` cover every process of the host, not
    only this run."""

    time: float
    """Seconds since 1970 (UTC)."""
    cpu_busy: float
    """Share of the time since the previous sample in which a processor core was busy, as a mean
    over all cores, in [0, 1]."""
    memory_bytes: int
    """Memory in use."""
    memory_total_bytes: int
    process_bytes: int
    """Resident memory of the worker process that takes the samples."""
    received_bytes: int
    """Bytes received on all of the host's interfaces since this attempt's start."""
    sent_bytes: int
    gpus: list[GpuSample] = Field(default_factory=list)


def system_file(folder: Path, host: str) -> Path:
    """The file with the samples of `host` in a run's folder."""
    safe = "".join(char if char.isalnum() or char in "._-" else "_" for char in host)
    return folder / f"{_PREFIX}{safe}{_SUFFIX}"


def system_files(folder: Path) -> dict[str, Path]:
    """Host -> file of its samples, sorted by host."""
    found = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    return {file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): file for file in found}


def read_samples(file: Path) -> Iterator[SystemSample]:
    """The samples of a file, without damaged lines."""
    for line in read_lines(file):
        with contextlib.suppress(ValidationError):
            yield SystemSample.model_validate_json(line)
