"""`raysuite image`: build, examine and enter Apptainer images."""

from __future__ import annotations

import typer

from raysuite.cli.image.build import build
from raysuite.cli.image.enter import run, shell
from raysuite.cli.image.examine import inspect, verify
from raysuite.cli.image.recipe import recipe

image = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Build, examine and enter Apptainer images.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _verb in (build, verify, inspect, shell, recipe):
    image.command(_verb.__name__)(_verb)
image.command("run", context_settings={"ignore_unknown_options": True})(run)
