"""`raysuite schema`: the JSON Schema of a spec."""

from __future__ import annotations

from typing import Annotated

import typer

from raysuite.cli.console import print_json


def schema(
    records: Annotated[
        bool,
        typer.Option(
            "--records", help="Print the schema of a journal line (and of --json) instead."
        ),
    ] = False,
) -> None:
    """Print the JSON Schema of a spec, with which an editor completes and checks it.

    \b
    Examples:
      raysuite schema > spec.schema.json
      raysuite schema --records > records.schema.json
    """
    from raysuite.records.schema import record_schema
    from raysuite.spec import spec_schema

    print_json(record_schema() if records else spec_schema())
