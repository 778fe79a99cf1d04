"""`raysuite cluster env`: the variables by which programs find a cluster."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.errors import UserError


def env(
    name: Annotated[
        str | None, typer.Argument(help="The cluster; default: the only one.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Print `export` lines that let `ray job submit` and MLflow find a cluster.

    They hold paths of secrets, and no secrets.

    \b
    Examples:
      eval "$(raysuite cluster env)"
      eval "$(raysuite cluster env second)"
    """
    from raysuite.cluster.environment import client_environment
    from raysuite.cluster.status import check_here, find_folder, status_of

    folder = find_folder(name)
    status = status_of(folder)
    check_here(status)
    if status.head is None or not status.lives:
        hint = "wait until it is up" if status.lives else "`raysuite cluster up` starts it"
        raise UserError(f"the cluster {folder.name!r} is {status.state}; {hint}")
    variables = client_environment(folder, status.head)
    print_text(json.dumps(variables, indent=2) if as_json else exports(variables))


def exports(variables: Mapping[str, str]) -> str:
    """Lines for a POSIX shell, in which each value is one word whatever it holds."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
