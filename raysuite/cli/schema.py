"""`raysuite schema`: the JSON Schema of a spec."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from raysuite.cli.console import print_text


def schema(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables for people instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of a spec, with which an editor completes and checks it.

    \b
    Examples:
      raysuite schema > spec.schema.json
      raysuite schema --markdown
    """
    from raysuite.cli.spec_tables import spec_tables
    from raysuite.spec import spec_schema

    content = spec_schema()
    print_text(spec_tables(content) if markdown else json.dumps(content, indent=2))
