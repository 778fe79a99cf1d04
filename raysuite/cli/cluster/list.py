"""`raysuite cluster list`: the clusters that there are."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from raysuite.cli.console import print_text, stdout


def list_clusters(
    everything: Annotated[bool, typer.Option("--all", help="Those that have ended too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List your clusters, the newest first.

    A cluster that is gone without a word is called stale; `raysuite cluster down NAME` removes
    what it left on this machine. What a SLURM job left on its nodes is removed by hand.
    """
    from raysuite.cli.cluster.words import age, as_data, in_words
    from raysuite.cluster.status import all_status

    found = [
        status for status in all_status() if everything or status.lives or status.state == "stale"
    ]
    if as_json:
        print_text(json.dumps([as_data(status) for status in found], indent=2))
        return
    if not found:
        print_text("no cluster is there; `raysuite cluster up` starts one", error=True)
        return
    from rich.table import Table

    table = Table("name", "state", "site", "nodes", "job", "age", box=None)
    for status in found:
        cluster = status.cluster
        nodes = f"{status.alive_count} of {status.wanted}"
        words = (cluster.name, in_words(status), cluster.site.name, nodes, cluster.job)
        table.add_row(*words, age(cluster.created))
    stdout().print(table)
