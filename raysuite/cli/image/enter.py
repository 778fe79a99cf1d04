"""`raysuite image shell` and `raysuite image run`: a person's way into an image."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raysuite.cli.console import print_text

_IMAGE = typer.Argument(metavar="IMAGE.sif", help="An image built by `raysuite image build`.")
_BIND = typer.Option("--bind", metavar="SRC[:DST[:ro]]", help="A folder to show; repeatable.")
_GPUS = typer.Option("--gpus/--no-gpus", help="Show NVIDIA's driver; default: where there is one.")
_DRY_RUN = typer.Option("--dry-run", help="Print the command, run nothing.")


def shell(
    image: Annotated[Path, _IMAGE],
    bind: Annotated[list[str] | None, _BIND] = None,
    gpus: Annotated[bool | None, _GPUS] = None,
    dry_run: Annotated[bool, _DRY_RUN] = False,
) -> None:
    """Open a shell inside an image.

    \b
    Examples:
      raysuite image shell raysuite.sif
      raysuite image shell raysuite.sif --bind /data:/data:ro
    """
    _enter("shell", image, bind, gpus, [], dry_run)


def run(
    image: Annotated[Path, _IMAGE],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of raysuite inside.")
    ] = None,
    bind: Annotated[list[str] | None, _BIND] = None,
    gpus: Annotated[bool | None, _GPUS] = None,
    dry_run: Annotated[bool, _DRY_RUN] = False,
) -> None:
    """Run the raysuite of an image, with the arguments after `--`.

    \b
    Examples:
      raysuite image run raysuite.sif -- doctor
      raysuite image run raysuite.sif --bind /data -- run experiments/quickstart.yaml
    """
    _enter("run", image, bind, gpus, arguments or [], dry_run)


def _enter(
    verb: str,
    image: Path,
    binds: Sequence[str] | None,
    gpus: bool | None,
    arguments: Sequence[str],
    dry_run: bool,
) -> None:
    from raysuite.images.engine import engine
    from raysuite.images.exec_line import exec_line
    from raysuite.images.inspect import image_path

    wanted = Path("/dev/nvidiactl").exists() if gpus is None else gpus
    here = os.getcwd()
    line = exec_line(image_path(image), binds=[*(binds or []), here], gpus=wanted, verb=verb)
    line += arguments
    if dry_run:
        print_text(shlex.join(line))
        return
    os.execv(engine(), line)
