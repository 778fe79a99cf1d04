"""`raysuite cluster down`: end a cluster, and nothing else of the same user."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.errors import UserError


def down(
    name: Annotated[
        str | None, typer.Argument(help="The cluster; default: the only one.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All clusters that live.")] = False,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that runs have to write a checkpoint and stop.")
    ] = 30.0,
    remove: Annotated[
        bool, typer.Option(help="Remove its folder too: its logs and its MLflow database.")
    ] = False,
) -> None:
    """End a cluster: its jobs, its processes, its temporary folders.

    Its logs and its MLflow database stay in its folder; the next one of that name goes on with
    the database.

    \b
    Examples:
      raysuite cluster down
      raysuite cluster down second --grace 120
      raysuite cluster down --all
    """
    from raysuite.cluster.status import all_status, find_folder
    from raysuite.cluster.teardown import down as take_down

    if everything and name:
        raise UserError(f"given were {name!r} and --all; give one of them")
    names = (
        [each.cluster.name for each in all_status() if each.lives or each.state == "stale"]
        if everything
        else [find_folder(name).name]
    )
    left = []
    for each in names:
        folder = find_folder(each)
        try:
            left += take_down(folder, grace, _teller(each))
        except UserError as error:
            if not everything:
                raise
            left.append(str(error))  # the others end all the same
            continue
        if remove:
            shutil.rmtree(folder.path, ignore_errors=True)
        print_text(f"{each} is down")
    if everything and not names:
        print_text("no cluster is there")
    if left:
        print_text("\n".join(left), error=True)
        raise typer.Exit(1)


def _teller(name: str) -> Callable[[str], None]:
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            print_text(f"{name}: {text}", error=True)

    return tell
