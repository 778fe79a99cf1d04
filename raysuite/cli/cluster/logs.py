"""`raysuite cluster logs`: what Ray, the agents and MLflow said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.cluster.folder import ClusterFolder

_POLL_S = 0.5


def logs(
    node: Annotated[
        str | None,
        typer.Argument(help="A host, or mlflow, slurm or agent; default: all.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="The cluster; default: the only one.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they grow.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Of each, the last.")] = 100,
) -> None:
    """Show the logs of a cluster.

    \b
    Examples:
      raysuite cluster logs
      raysuite cluster logs node2 -n 20
      raysuite cluster logs mlflow -f
    """
    from raysuite.cluster.status import find_folder

    files = _files(find_folder(cluster), node)
    ends = dict.fromkeys(files, 0)
    for file in files:
        told = _fresh(file, ends, follow)
        for line in told[-lines:] if lines else ():
            print_text(_marked(file, line, len(files)))
    while follow:
        time.sleep(_POLL_S)
        for file in files:
            for line in _fresh(file, ends, follow):
                print_text(_marked(file, line, len(files)))


def _fresh(file: Path, ends: dict[Path, int], whole: bool) -> list[str]:
    """The lines behind the file's end so far, which moves on; `whole`: no line that still grows."""
    with file.open("rb") as stream:
        stream.seek(ends[file])
        text = stream.read()
    if whole:
        text = text[: text.rfind(b"\n") + 1]
    ends[file] += len(text)
    return text.decode("utf-8", "replace").splitlines()


def _files(folder: ClusterFolder, node: str | None) -> list[Path]:
    found = {file.stem: file for file in sorted(folder.logs.glob("*.log"))}
    if node is None:
        if not found:
            raise UserError(f"the cluster {folder.name!r} has no logs yet")
        return list(found.values())
    if node not in found:
        raise UserError(f"no log is called {node!r}; valid are {', '.join(found) or 'none yet'}")
    return [found[node]]


def _marked(file: Path, line: str, files: int) -> str:
    return f"{file.stem}: {line}" if files > 1 else line
