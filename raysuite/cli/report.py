"""`raysuite report`: show one results folder, compare two, or show the history of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_json, print_sheet, print_text, stdout
from raysuite.cli.run_options import AsJson, folder_to_write
from raysuite.errors import UserError
from raysuite.files import write_whole
from raysuite.units import count

if TYPE_CHECKING:
    from raysuite.perf.explanation import Explained
    from raysuite.records import Results, Row
    from raysuite.report import Report
    from raysuite.report.against import Comparison
    from raysuite.report.tables import Sheet


def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RESULTS]...",
            help="Results folder, or a folder above it, in which the newest results are used. With "
            "--history, several folders; all results below them are used. Default: results.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name, or part of the name, of the row with which all others are compared. "
            "workers=4: in each series, the row whose number of workers is nearest to 4. Default: "
            "for each row, the same variant with the fewest workers.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="STUDY",
            help="Compare with another results folder (a sweep with a sweep), or with a paper's "
            "published values: published:aach2023, published:mahon2020, published:ddlbench2020, "
            "published:torchgpipe2020.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            callback=folder_to_write,
            help="Folder for the files; default: RESULTS. With --history: folder for history.html, "
            "a page with a plot and a table per variant; default: none is written.",
        ),
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option("--pictures/--no-pictures", help="Also save each plot as SVG, PDF and PNG."),
    ] = True,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="For each row, print the term with the largest share of the time, the throughput "
            "without this term, and what to try; write nothing.",
        ),
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For --explain: file written by `raysuite calibrate`, from which communication "
            "and a step's overhead are computed; default: computed from other rows.",
        ),
    ] = None,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Print each variant's throughput by date, version and commit, and mark changes; "
            "write nothing, except the page in --out.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write report.html, tables and plots of a results folder, and print the table.

    The command can be called at any time: runs that failed, or have not been started, are marked.

    If the runs have `measure.profile: torch`, --explain has measured terms for communication and
    stragglers. Without a profile, communication is computed from the calibration or from other
    rows, and there is no term for stragglers.

    --history compares only runs on the same hardware. A change is reported if the confidence
    interval of the throughput ratio, after to before, excludes 1. The confidence level is corrected
    (Bonferroni) for the number of places at which a change is tested: in a series, each place
    between two consecutive results folders.

    \b
    Examples:
      raysuite report results/quickstart
      raysuite report results/quickstart --baseline single
      raysuite report results/quickstart --against results/yesterday
      raysuite report results/aach2023-throughput --against published:aach2023
      raysuite report results/quickstart --json | jq '.rows[].name'
      raysuite report results/quickstart --explain --calibration this-machine.yaml
      raysuite report results/nightly /shared/results/nightly --history --out pages
    """
    from raysuite.records import Results
    from raysuite.report import build

    folders = results or [Path("results")]
    instead = "--explain" if explain else "--history" if history else None
    given: dict[str, object] = {"--baseline": baseline, "--against": against}
    given |= {"--no-pictures": not pictures}
    given |= {"--history": history, "--out": out} if explain else {}
    if unused := [name for name, value in given.items() if value and instead]:
        raise UserError(f"{instead} writes no report; leave {', '.join(unused)} out")
    if calibration is not None and not explain:
        raise UserError("--calibration is used by --explain only; give both")
    if history:
        _history(folders, out, as_json)
        return
    if len(folders) > 1:
        raise UserError(
            f"got {len(folders)} results folders; give one, or --history for all results over time"
        )
    opened = Results.open(folders[0])
    if explain:
        _explain(opened, calibration, as_json)
        return
    made = build(opened, out, baseline, against=against, pictures=pictures, further=sheets_of)
    if as_json:
        compared = {"against": made.comparison.data()} if made.comparison else {}
        print_json(made.data() | compared)
        return
    show(made, out or opened.folder)


def show(made: Report, folder: Path) -> None:
    from raysuite.report.tables import terminal_table

    console = stdout()
    if made.sweep is None:
        console.print(terminal_table(made.rows, console.width))
    else:
        from raysuite.report.sweep.sweep_tables import best_sheet

        print_sheet(best_sheet(made.sweep.study), without=("Rank", "Gate"))
    for sentence in made.summary:
        style = {"caveat": "yellow", "problem": "red"}.get(sentence.kind, "")
        console.print(f"- {sentence.text}", style=style)
    if made.sweep is None:
        console.print(f"- {made.note}")
    if made.comparison is not None:
        _show_comparison(made.comparison)
    print_text(f"\n{folder / 'report.html'}")
    for name in made.sweep.best_files if made.sweep is not None else ():
        print_text(f"{folder / name}  (run it: raysuite run {folder / name})")


def _show_comparison(comparison: Comparison) -> None:
    """Print the comparison and, for each reason, the number of rows and values without a
    counterpart."""
    from raysuite.report.against import comparison_sheets

    console = stdout()
    for sheet in comparison_sheets(comparison):
        if sheet.name != "against-unmatched":
            print_sheet(sheet, without=("Notes", "Interval of"))
    reasons = Counter(f"{each.side}: {each.reason}" for each in comparison.unmatched)
    if reasons:
        console.print("\nWithout a counterpart (all are listed in tables/against-unmatched.md)")
    for reason, number in reasons.most_common():
        console.print(f"- {number} of {reason}")


def _explain(results: Results, calibration: Path | None, as_json: bool) -> None:
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.explanation import explain
    from raysuite.plan.simulation import idle_of
    from raysuite.records import make_rows, results_figures

    runs = results_figures(results)
    found = None if calibration is None else Calibration.read(calibration)
    idle = {
        run.run_id: idle_of(run.plan) for run in runs if run.plan["spec"]["strategy"].get("stages")
    }
    rows = explain(make_rows(runs), found, idle)
    if as_json:
        limits = [{term: row.limit(term) for term in row.shares} for row in rows]
        print_json([asdict(row) | {"limits": own} for row, own in zip(rows, limits, strict=True)])
    elif rows:
        print_sheet(_explained_sheet(rows))
    else:
        print_text("no row has a throughput yet")


def sheets_of(rows: Sequence[Row]) -> list[Sheet]:
    """The explanations as a table for a report; an empty list if no row has a throughput."""
    from raysuite.perf.explanation import explain

    found = explain(rows)
    return [_explained_sheet(found)] if found else []


def _explained_sheet(rows: list[Explained]) -> Sheet:
    from raysuite.report import text
    from raysuite.report.tables import sheet_from

    rate = f"{rows[0].unit.capitalize()}/s"
    lines = []
    for row in rows:
        limit = row.limit(row.binding)
        line = {
            "Row": row.name,
            rate: text.number(row.throughput),
            "Most time in": f"{row.binding}, {row.shares[row.binding]:.0%}",
            "Without it": text.NONE if limit is None else f"{text.number(limit)} {row.unit}/s",
            "Then": ", ".join(f"{term} {part:.0%}" for term, part in [*row.shares.items()][1:4]),
            "Try first": row.first or text.NONE,
            "By": row.evidence,
        }
        lines.append(line)
    note = (
        "Without it: the throughput if the term with the most time took no time and the others "
        "were unchanged."
    )
    numbers = (rate, "Without it")
    sheet = sheet_from("explained", "What takes the time", lines, numbers, (note,))
    return replace(sheet, main=frozenset(("Row", "Most time in", "Try first")))


def _history(folders: Sequence[Path], out: Path | None, as_json: bool) -> None:
    from raysuite.records import Results
    from raysuite.records.history import histories
    from raysuite.report.history_page import history_sheet, page

    found = sorted(
        {
            file.parent.resolve()
            for folder in folders
            for depth in ("", "*/", "*/*/")
            for file in folder.glob(f"{depth}plan.json")
        }
    )
    if not found:
        raise UserError(f"no results below {', '.join(map(str, folders))}; give folders of results")
    readable = []
    for folder in map(Results, found):
        try:
            folder.plans()
        except UserError as error:
            print_text(f"warning: {error}; this results folder is left out", error=True)
        else:
            readable.append(folder)
    series = histories(readable)
    file = out / "history.html" if out and series else None
    if file is not None:
        write_whole(file, page(series).encode())
    if as_json:
        print_json([asdict(each) for each in series])
        return
    if not series:
        print_text(
            f"no history yet: of {count(len(found), 'results folder')} below "
            f"{', '.join(map(str, folders))}, no two have a throughput of the same variant on the "
            "same hardware"
        )
        return
    for each in series:
        print_sheet(history_sheet(each))
    if file is not None:
        print_text(str(file))
