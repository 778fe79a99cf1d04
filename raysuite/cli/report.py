"""`raysuite report`: what a results folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_text, stdout

if TYPE_CHECKING:
    from raysuite.report import Report


def report(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="The folder that `raysuite run` printed, or one above it: the newest is taken.",
        ),
    ] = Path("results"),
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A row to measure all others against, or a part of its name. "
            "Default: for each row, its own variant with the fewest workers.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write the files; default: RESULTS."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print rows and runs as JSON instead of a table.")
    ] = False,
) -> None:
    """Write report.html, rows.csv, rows.md and rows.json, and print the table.

    It can be called at any time: runs that failed or are still to come are named as such.

    \b
    Examples:
      raysuite report results/quickstart
      raysuite report results/quickstart --baseline single
      raysuite report results/quickstart --baseline "ddp · native · 1 worker"
      raysuite report results/quickstart --json | jq '.rows[].name'
    """
    from raysuite.records import Results
    from raysuite.report import build

    opened = Results.open(results)
    made = build(opened, out, baseline)
    if as_json:
        print_text(json.dumps(made.data(), indent=2, ensure_ascii=False))
        return
    show(made, out or opened.folder)


def show(made: Report, folder: Path) -> None:
    """Print the table and what it says in words."""
    from raysuite.report.tables import terminal_table

    console = stdout()
    console.print(terminal_table(made.rows, console.width))
    for sentence in made.summary:
        style = {"caveat": "yellow", "problem": "red"}.get(sentence.kind, "")
        console.print(f"- {sentence.text}", style=style)
    console.print(f"- {made.note}")
    print_text(f"\n{folder / 'report.html'}")
