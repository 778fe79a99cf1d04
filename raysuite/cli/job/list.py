"""`raysuite job list`: the jobs of a cluster."""

from __future__ import annotations

from raysuite.cli import console
from raysuite.cli.job.server import ClusterOption, JsonOption, ViaOption, job_server
from raysuite.cli.job.telling import as_json, rows


def list_(cluster: ClusterOption = None, via: ViaOption = None, json_: JsonOption = False) -> None:
    """List the jobs of a cluster, the oldest first.

    \b
    Examples:
      raysuite job list
      raysuite job list --cluster mine --json
    """
    with job_server(cluster, via) as server:
        jobs = server.jobs()
    if json_:
        console.print_text(as_json(jobs))
        return
    from rich.table import Table

    table = Table("job", "state", "started", "h:mm:ss", "command", box=None, pad_edge=False)
    for row in rows(jobs):
        table.add_row(*row)
    console.stdout().print(table, markup=False)
