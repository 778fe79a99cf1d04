"""`raysuite job cancel`: a job asked to end."""

from __future__ import annotations

from typing import Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.cli.job.follow import ending
from raysuite.cli.job.server import ClusterOption, ViaOption, job_server
from raysuite.errors import RunError


def cancel(
    name: Annotated[str, typer.Argument(metavar="JOB", help="The job.", show_default=False)],
    cluster: ClusterOption = None,
    via: ViaOption = None,
    patience_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for its end.")
    ] = 90.0,
) -> None:
    """Ask a job to end, and wait until it has.

    `raysuite run` keeps what has finished: `raysuite run --resume` goes on.

    \b
    Example:
      raysuite job cancel job-1122-093000-a1b2c3
    """
    with job_server(cluster, via) as server:
        job = server.cancel(name, patience_s)
    if not job.ended_already:
        raise RunError(f"job {name} has not ended within {patience_s:g} s; it was asked to")
    print_text(ending(job))
