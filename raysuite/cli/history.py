"""`raysuite history`: throughput over several results folders, with its changes."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_text, stdout
from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.records.history import Point


def history(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RESULTS]...",
            help="Results folders, or folders above them; default: results.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all points as JSON.")] = False,
) -> None:
    """Show each variant's throughput by date, version and commit, and where it changed.

    Runs compare only on the same hardware. A change is named where the confidence interval of the
    ratio of the throughputs after and before excludes 1, over all places of a series together.

    \b
    Examples:
      raysuite history
      raysuite history results/quickstart
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
    for each in series:
        print_text(f"{each.name}  ({each.hardware})")
        _table(each.points)
        if each.by_runs and any(point.change for point in each.points):
            print_text("  fewer than 4 folders: a drift between them also counts as a change")


def _table(points: tuple[Point, ...]) -> None:
    from rich import box
    from rich.table import Table

    from raysuite.report import text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("Date", "Version", "Commit", "Images/s", "Change"):
        shown.add_column(title, justify="right" if title == "Images/s" else "left")
    for point in points:
        change = ""
        if point.change is not None:
            kind = "regression" if point.change.value < 1 else "improvement"
            change = f"{kind}: {text.ratio(point.change)}"
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(point.time))
        style = "red" if change.startswith("regression") else "green" if change else ""
        shown.add_row(
            date, point.version, point.commit, text.stat(point.throughput), change, style=style
        )
    stdout().print(shown)
