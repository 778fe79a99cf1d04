"""`raysuite job status`: how a job stands."""

from __future__ import annotations

from typing import Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.cli.job.follow import ending
from raysuite.cli.job.server import ClusterOption, JsonOption, ViaOption, job_server
from raysuite.cli.job.telling import as_json


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The job; default: the newest.")
    ] = None,
    cluster: ClusterOption = None,
    via: ViaOption = None,
    json_: JsonOption = False,
) -> None:
    """Say how a job stands.

    \b
    Examples:
      raysuite job status
      raysuite job status job-1122-093000-a1b2c3 --json
    """
    with job_server(cluster, via) as server:
        wanted = server.job(name) if name else server.newest()
    print_text(as_json(wanted) if json_ else ending(wanted))
