"""`raysuite job logs`: what a job printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from raysuite.cli.job.follow import follow_to_end
from raysuite.cli.job.server import ClusterOption, ViaOption, job_server


def logs(
    name: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The job; default: the newest.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, and end as it does.")
    ] = False,
    cluster: ClusterOption = None,
    via: ViaOption = None,
) -> None:
    """Print what a job printed.

    \b
    Examples:
      raysuite job logs
      raysuite job logs -f job-1122-093000-a1b2c3
    """
    with job_server(cluster, via) as server:
        wanted = server.job(name) if name else server.newest()
        if not follow:
            sys.stdout.write(server.logs(wanted.id))
            return
        ended = follow_to_end(server, wanted.id)
    raise typer.Exit(ended.code)
