"""The cluster that a verb of `raysuite job` speaks with: ours, or one behind a login node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.cluster.folder import ClusterFolder
    from raysuite.orchestrate.jobs import JobServer

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-c", metavar="NAME", help="The cluster; needed where several are."),
]
ViaOption = Annotated[
    str | None,
    typer.Option(
        metavar="LOGIN",
        help="The cluster is of another machine: reach it by `ssh LOGIN`, as in me@login.site.org.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def job_server(cluster: str | None, via: str | None) -> Iterator[JobServer]:
    """The job server of the cluster that is meant. Raises UserError where that is not clear."""
    from raysuite.cluster.forward import forwarded
    from raysuite.orchestrate.jobs import JobServer

    with forwarded(via, cluster) if via else nullcontext(_chosen(cluster)) as folder:
        head = folder.head()
        if head is None:
            raise UserError(
                f"cluster {folder.name!r} is not up: its head has not answered yet; "
                f"`raysuite cluster status {folder.name}` tells more"
            )
        yield JobServer(head.dashboard, folder.token_file)


def _chosen(name: str | None) -> ClusterFolder:
    """The cluster `name`, else the one that this process runs in, else the only one that lives."""
    from raysuite.cluster.folder import current_folder
    from raysuite.cluster.status import find_folder

    current = current_folder()
    return current if name is None and current is not None else find_folder(name)
