"""`raysuite job forward`: a tunnel that stays open, for `ray job submit`, browsers and MLflow."""

from __future__ import annotations

from typing import Annotated

import typer

from raysuite.cli.cluster.env import exports
from raysuite.cli.console import print_text
from raysuite.cli.job.server import ClusterOption


def forward(
    login: Annotated[
        str, typer.Argument(metavar="LOGIN", help="For `ssh LOGIN`.", show_default=False)
    ],
    cluster: ClusterOption = None,
) -> None:
    """Carry a cluster's dashboard and MLflow to this machine's loopback, until Ctrl-C.

    What it prints goes into another terminal there: `ray job submit`, `raysuite sync` and MLflow
    then speak with the cluster. ssh asks for passwords in this terminal.

    \b
    Example:
      raysuite job forward me@login.site.org
    """
    from raysuite.cluster.environment import client_environment
    from raysuite.cluster.forward import forwarded

    with forwarded(login, cluster) as folder:
        head = folder.head()
        assert head is not None  # else there is nothing to forward
        print_text(exports(client_environment(folder, head)))
        print_text("the tunnel is open until Ctrl-C", error=True)
        folder.wait()
