"""`raysuite explain`: what bounds each row of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_json, print_sheet, print_text
from raysuite.cli.run_options import AsJson, RunResults

if TYPE_CHECKING:
    from raysuite.perf.explanation import Explained
    from raysuite.records import Row
    from raysuite.report.tables import Sheet


def explain(
    results: RunResults,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File written by `raysuite calibrate`, which separates more terms."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name the term that takes most of each row's time, the throughput without it, and what to try.

    With `measure.profile: torch`, communication and stragglers are separate terms. Without it, the
    terms are waits for the loader and, with a calibration, communication and a step's overhead.

    \b
    Examples:
      raysuite explain results/quickstart
      raysuite explain results/quickstart --calibration this-machine.yaml
      raysuite run experiments/quickstart.yaml measure.profile=torch && raysuite explain results
    """
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.explanation import explain as explained
    from raysuite.plan.simulation import idle_of
    from raysuite.records import Results, make_rows, results_figures

    opened = Results.open(results)
    runs = results_figures(opened)
    found = None if calibration is None else Calibration.read(calibration)
    idle = {
        run.run_id: idle_of(run.plan) for run in runs if run.plan["spec"]["strategy"].get("stages")
    }
    rows = explained(make_rows(runs), found, idle)
    if as_json:
        limits = [{term: row.limit(term) for term in row.shares} for row in rows]
        print_json([asdict(row) | {"limits": own} for row, own in zip(rows, limits, strict=True)])
        return
    if not rows:
        print_text("no row has a throughput yet")
        return
    print_sheet(sheet_of(rows))


def sheets_of(rows: Sequence[Row]) -> list[Sheet]:
    """The explanations as a table for a report; an empty list if no row has a throughput."""
    from raysuite.perf.explanation import explain as explained

    found = explained(rows)
    return [sheet_of(found)] if found else []


def sheet_of(rows: list[Explained]) -> Sheet:
    """The explanations as a table, with one line for each row."""
    from raysuite.report import text
    from raysuite.report.tables import Sheet

    rate = f"{rows[0].unit.capitalize()}/s"

    def without(row: Explained) -> str:
        limit = row.limit(row.binding)
        return text.NONE if limit is None else f"{text.number(limit)} {row.unit}/s"

    return Sheet(
        name="explained",
        title="What takes the time",
        header=("Row", rate, "Most time in", "Without it", "Then", "Try first", "By"),
        cells=tuple(
            (
                row.name,
                text.number(row.throughput),
                f"{row.binding}, {row.shares[row.binding]:.0%}",
                without(row),
                ", ".join(f"{term} {part:.0%}" for term, part in list(row.shares.items())[1:4]),
                row.first or text.NONE,
                row.evidence,
            )
            for row in rows
        ),
        numbers=frozenset((rate, "Without it")),
        main=frozenset(("Row", "Most time in", "Try first")),
        notes=("Without it: throughput if that term took no time, all else as it is.",),
    )
