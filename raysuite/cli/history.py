"""`raysuite history`: throughput over several results folders, with its changes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from raysuite.cli.console import print_text, stdout
from raysuite.errors import UserError


def history(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RESULTS]...",
            help="Results folders, or folders above them; default: results.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with a plot and a table per variant."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all points as JSON.")] = False,
) -> None:
    """Show each variant's throughput by date, version and commit, and where it changed.

    Only runs on the same hardware are compared. A change is named where the confidence interval of
    the ratio of the throughputs after and before excludes 1, over all places of a series together.

    \b
    Examples:
      raysuite history
      raysuite history results/quickstart
      raysuite history results/nightly --html history.html
      raysuite history results/nightly /shared/results/nightly --json
    """
    from raysuite.records import Results
    from raysuite.records.history import histories

    given = folders or [Path("results")]
    found = sorted(
        {
            file.parent.resolve()
            for folder in given
            for depth in ("", "*/", "*/*/")
            for file in folder.glob(f"{depth}plan.json")
        }
    )
    series = histories(Results(folder) for folder in found)
    if as_json:
        print_text(json.dumps([dataclasses.asdict(each) for each in series], indent=2))
        return
    if not series:
        named = ", ".join(map(str, given))
        raise UserError(
            f"{len(found)} results folders below {named}, and no variant has a throughput in two "
            "of them on the same hardware; give folders of the same spec"
        )
    from raysuite.report.history import history_sheet
    from raysuite.report.tables import terminal_sheet

    if html is not None:
        from raysuite.report.history import page

        html.write_text(page(series), "utf-8")
    for each in series:
        sheet = history_sheet(each)
        print_text(sheet.title)
        stdout().print(terminal_sheet(sheet))
        for note in sheet.notes:
            print_text(f"- {note}")
    if html is not None:
        print_text(str(html))
