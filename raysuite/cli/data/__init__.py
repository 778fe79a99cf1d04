"""`raysuite data`: a group of verbs, one a file."""

from __future__ import annotations

import typer

from raysuite.cli.data.check import check
from raysuite.cli.data.convert import convert
from raysuite.cli.data.make import make

data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make, convert and check data sets.",
)

for _verb in (make, convert, check):
    data.command(_verb.__name__)(_verb)
