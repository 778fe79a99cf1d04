"""`raysuite cluster`: a group of verbs, one a file."""

from __future__ import annotations

import typer

from raysuite.cli.cluster.doctor import doctor
from raysuite.cli.cluster.down import down
from raysuite.cli.cluster.env import env
from raysuite.cli.cluster.list import list_clusters
from raysuite.cli.cluster.logs import logs
from raysuite.cli.cluster.site import site
from raysuite.cli.cluster.status import status
from raysuite.cli.cluster.up import up

cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A Ray cluster of your own: on this machine, or on the nodes of a SLURM site.",
)

cluster.command("up")(up)
cluster.command("env")(env)
cluster.command("status")(status)
cluster.command("list")(list_clusters)
cluster.command("logs")(logs)
cluster.command("down")(down)
cluster.command("doctor")(doctor)
cluster.add_typer(site, name="site")
