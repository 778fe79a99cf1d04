"""`raysuite job submit`: a command on the cluster's head, followed to its end."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.cli.job.follow import follow_to_end
from raysuite.cli.job.server import ClusterOption, JsonOption, ViaOption, job_server
from raysuite.cli.job.telling import as_json


def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="What to run.", show_default=False),
    ],
    cluster: ClusterOption = None,
    via: ViaOption = None,
    follow: Annotated[
        bool, typer.Option(help="Print what the job prints, and end as it does.")
    ] = True,
    json_: JsonOption = False,
) -> None:
    """Run a command on a cluster: on its head node, in the folder where it was started.

    The words reach the command as they are; no shell takes them apart. The exit code is the
    job's: 0, 75 where it was stopped and can go on later, another where it failed. Ctrl-C leaves
    the job alone.

    \b
    Examples:
      raysuite job submit -- raysuite run experiments/aach2023-throughput.yaml
      raysuite job submit --no-follow -- raysuite run experiments/quickstart.yaml repeats=5
      raysuite job submit --via me@login.site.org -- raysuite run experiments/quickstart.yaml
    """
    with job_server(cluster, via) as server:
        name = server.submit(shlex.join(words))
        print_text(f"job {name} is submitted", error=True)
        if not follow:
            print_text(as_json(server.job(name)) if json_ else name)
            return
        ended = follow_to_end(server, name, silent=json_)
        if json_:
            print_text(as_json(ended))
    raise typer.Exit(ended.code)
