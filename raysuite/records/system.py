"""What hosts do while a run is at work on them: samples in a file of each, beside the journal.

RESULTS/runs/RUN_ID/system-HOST.jsonl, one sample a line. They are no Records: nothing is derived
from them but what MLflow shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from raysuite.files import read_lines

_PREFIX, _SUFFIX = "system-", ".jsonl"


class GpuSample(BaseModel):
    """One GPU of the host, by NVML; None where NVML does not report it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    index: int
    """NVML's."""
    busy: float | None
    """Part of NVML's last sample period in which a kernel ran, in [0, 1]."""
    memory_bytes: int | None
    memory_total_bytes: int | None
    watts: float | None


class SystemSample(BaseModel):
    """One look at a host: all that runs there, not this run alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: float
    """Seconds since 1970 (UTC)."""
    cpu_busy: float
    """Part of all processors' time since the last sample, in [0, 1]."""
    memory_bytes: int
    """In use."""
    memory_total_bytes: int
    process_bytes: int
    """Resident memory of the worker that samples."""
    received_bytes: int
    """Through all of the host's interfaces, since this attempt's start."""
    sent_bytes: int
    gpus: list[GpuSample] = []


def system_file(folder: Path, host: str) -> Path:
    """The file with the samples of `host` in a run's folder."""
    safe = "".join(char if char.isalnum() or char in "._-" else "_" for char in host)
    return folder / f"{_PREFIX}{safe}{_SUFFIX}"


def system_files(folder: Path) -> dict[str, Path]:
    """Host -> its samples, in the order of their names."""
    found = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    return {file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): file for file in found}


def read_samples(file: Path) -> Iterator[SystemSample]:
    """The samples of a file; damaged lines are passed over."""
    for line in read_lines(file):
        with contextlib.suppress(ValidationError):
            yield SystemSample.model_validate_json(line)
