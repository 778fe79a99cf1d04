"""`raysuite bench`: a group of verbs, one a file."""

from __future__ import annotations

import typer

from raysuite.cli.bench.batch import batch
from raysuite.cli.bench.loaders import loaders

bench = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure a part of training by itself.",
)


@bench.callback()
def _group() -> None:
    """A group of verbs."""


for _verb in (loaders, batch):
    bench.command(_verb.__name__)(_verb)
