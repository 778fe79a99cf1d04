"""A job followed to its end, and left alone by Ctrl-C."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from raysuite.cli.console import print_text

if TYPE_CHECKING:
    from raysuite.orchestrate.jobs import Job, JobServer


def follow_to_end(server: JobServer, name: str, silent: bool = False) -> Job:
    """Print what the job prints, unless `silent`, until it has ended; then say how.

    Raises KeyboardInterrupt at Ctrl-C, after having told how to come back to the job.
    """
    try:
        for text in server.follow(name):
            if not silent:
                sys.stdout.write(text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        print_text(
            f"job {name} goes on; follow it by `raysuite job logs -f {name}`, "
            f"cancel it by `raysuite job cancel {name}`",
            error=True,
        )
        raise
    job = server.job(name)
    print_text(ending(job), error=True)
    return job


def ending(job: Job) -> str:
    """One line on how a job ended."""
    if job.status == "SUCCEEDED":
        return f"job {job.id} succeeded"
    if job.status == "STOPPED":
        return f"job {job.id} was cancelled"
    if job.status != "FAILED":
        return f"job {job.id} is {job.status.lower()}"
    if job.code == os.EX_TEMPFAIL:  # of `raysuite run`
        return f"job {job.id} was stopped and can go on later: exit code {job.code}"
    said = f"exit code {job.exit_code}" if job.exit_code is not None else job.message
    return f"job {job.id} failed: {said}"
