"""`raysuite job forward`: a tunnel that stays open, for `ray job submit`, browsers and MLflow."""

from __future__ import annotations

import shlex
import threading
from typing import Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.cli.job.server import ClusterOption
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.forward import forwarded


def forward(
    login: Annotated[
        str, typer.Argument(metavar="LOGIN", help="For `ssh LOGIN`.", show_default=False)
    ],
    cluster: ClusterOption = None,
) -> None:
    """Carry a cluster's dashboard and MLflow to this machine's loopback, until Ctrl-C.

    What it prints goes into another terminal there: `ray job submit`, `raysuite sync` and MLflow
    then speak with the cluster.

    \b
    Example:
      raysuite job forward me@login.site.org
    """
    with forwarded(login, cluster) as folder:
        for name, value in _variables(folder).items():
            print_text(f"export {name}={shlex.quote(value)}")
        print_text("the tunnel is open until Ctrl-C", error=True)
        threading.Event().wait()


def _variables(folder: ClusterFolder) -> dict[str, str]:
    head = folder.head()
    assert head is not None
    tracking = {"MLFLOW_TRACKING_URI": head.mlflow, "MLFLOW_TRACKING_AUTH": "raysuite"}
    return {
        "RAY_ADDRESS": head.dashboard,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.token_file),
        "RAYSUITE_CLUSTER": str(folder.path),
        **(tracking if head.mlflow else {}),
    }
