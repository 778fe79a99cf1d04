"""The cluster that a verb of `raysuite job` speaks with: ours, or one behind a login node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cluster.folder import ClusterFolder, all_folders, current_folder, folder_of
from raysuite.cluster.forward import forwarded
from raysuite.errors import UserError

if TYPE_CHECKING:
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
    if name is not None:
        folder = folder_of(name)
        folder.cluster()  # raises where there is none
        return folder
    if (current := current_folder()) is not None:
        return current
    known = [folder for folder in all_folders() if folder.head()]
    if len(known) == 1:
        return known[0]
    if not known:
        raise UserError("no cluster of yours is up; start one by `raysuite cluster up`")
    names = ", ".join(folder.name for folder in known)
    raise UserError(f"several clusters are up ({names}); say which by --cluster NAME")
