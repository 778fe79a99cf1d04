"""`raysuite job`: a group of verbs, one a file."""

from __future__ import annotations

import typer

from raysuite.cli.job.cancel import cancel
from raysuite.cli.job.forward import forward
from raysuite.cli.job.list import list_
from raysuite.cli.job.logs import logs
from raysuite.cli.job.status import status
from raysuite.cli.job.submit import submit

job = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Submit jobs to a cluster, follow and cancel them; from a laptop too, through SSH.",
)

for _verb in (submit, logs, status, list_, cancel, forward):
    job.command(_verb.__name__.rstrip("_"))(_verb)
