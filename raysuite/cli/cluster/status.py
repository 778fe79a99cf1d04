"""`raysuite cluster status`: one cluster, its nodes and its jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_text, stdout

if TYPE_CHECKING:
    from raysuite.cluster.dashboard import RayJob
    from raysuite.cluster.folder import ClusterFolder
    from raysuite.cluster.status import Status


def status(
    name: Annotated[
        str | None, typer.Argument(help="The cluster; default: the only one.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show a cluster: its state, nodes, addresses and jobs, and where its start's seconds went."""
    from raysuite.cli.cluster.words import as_data
    from raysuite.cluster.status import find_folder, status_of

    folder = find_folder(name)
    found = status_of(folder)
    jobs = _jobs(folder, found)
    if as_json:
        data = as_data(found) | {
            "jobs": [{"id": job.id, "status": job.status} for job in jobs],
            "timings": folder.timings(),
        }
        print_text(json.dumps(data, indent=2))
        return
    _show(folder, found, jobs)


def _jobs(folder: ClusterFolder, found: Status) -> list[RayJob]:
    from raysuite.cluster.dashboard import Dashboard, NoAnswerError

    if found.head is None or found.state not in ("up", "stopping"):
        return []
    try:
        return Dashboard(found.head.dashboard, folder.token()).jobs()
    except (NoAnswerError, OSError):
        return []


def _show(folder: ClusterFolder, found: Status, jobs: list[RayJob]) -> None:
    from rich.table import Table

    from raysuite.cli.cluster.words import age, in_words, mlflow_in_words, node_in_words

    cluster, head, out = found.cluster, found.head, stdout()
    facts = {
        "state": in_words(found),
        "site": f"{cluster.site.name} ({cluster.backend}, job {cluster.job or '-'})",
        "since": age(cluster.created),
        "nodes": f"{found.alive_count} of {found.wanted} alive",
        "folder": str(folder.path),
        "jobs start in": cluster.working_folder,
    }
    if head:
        facts |= {
            "ray": head.gcs,
            "ray client": head.client,
            "dashboard": head.dashboard,
            "mlflow": mlflow_in_words(head),
        }
    seconds = folder.timings()
    if seconds:
        facts["start took"] = ", ".join(f"{what} {value:.1f} s" for what, value in seconds.items())
    out.print(f"{cluster.name}")
    for what, value in facts.items():
        out.print(f"  {what:14}{value}", soft_wrap=True)
    if found.nodes:
        table = Table("node", "address", "state", box=None)
        for index, node in enumerate(found.nodes):
            table.add_row(node.host, node.address, node_in_words(found, index))
        out.print(table)
    if jobs:
        table = Table("job", "status", "command", box=None)
        for job in jobs:
            table.add_row(job.id, job.status, job.entrypoint)
        out.print(table)
