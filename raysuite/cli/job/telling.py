"""Jobs as JSON and as lines of a table."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysuite.orchestrate.jobs import Job


def as_json(job: Job | Sequence[Job]) -> str:
    """One job as an object, several as an array."""
    found = [asdict(each) for each in job] if isinstance(job, Sequence) else asdict(job)
    return json.dumps(found, indent=2)


def rows(jobs: Sequence[Job]) -> list[tuple[str, ...]]:
    """What a table shows of each job."""
    return [
        (job.id, job.status.lower(), _clock(job.started), _lasted(job), job.entrypoint)
        for job in jobs
    ]


def _clock(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _lasted(job: Job) -> str:
    if job.started is None:
        return ""
    minutes, seconds = divmod(int((job.ended or time.time()) - job.started), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
