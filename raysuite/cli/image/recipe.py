"""`raysuite image recipe`: the definition files of containers/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysuite.cli.console import print_text


def recipe(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: containers/ of the checkout.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 where a file differs.")
    ] = False,
) -> None:
    """Write the definition files of all variants, as spython makes them from one recipe.

    \b
    Examples:
      raysuite image recipe
      raysuite image recipe --check
    """
    from raysuite.images.build import checkout
    from raysuite.images.layers import Choice, Variant
    from raysuite.images.recipe import definitions, file_names

    folder = out or checkout() / "containers"
    differs = False
    for variant in Variant:
        choice = Choice(variant)
        for layer, text in definitions(choice).items():
            path = folder / file_names(choice)[layer]
            same = path.is_file() and path.read_text("utf-8") == text
            differs |= not same
            if not check:
                path.write_text(text, "utf-8")
            print_text(f"{path}: {'as it was' if same else 'differs' if check else 'written'}")
    if check and differs:
        raise typer.Exit(1)
