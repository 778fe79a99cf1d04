"""Write a report as files: tables, plots and the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raysuite.files import write_whole
from raysuite.records import Results
from raysuite.report import plot as p
from raysuite.report.against import Comparison, comparison_sheets
from raysuite.report.classes import class_sheet
from raysuite.report.collect import Further, Report, collect
from raysuite.report.provenance import provenance_sheets
from raysuite.report.raw_data import csv_of, csv_text, finite, json_text, searched_values
from raysuite.report.sweep.sweep_report import outdated
from raysuite.report.tables import Sheet, gate_sheet, rows_latex, sheet_files


def build(
    results: Results,
    out: Path | None = None,
    baseline: str | None = None,
    pictures: bool = True,
    against: str | None = None,
    further: Further = lambda rows: (),
) -> Report:
    """Collect the report and write its files into `out` (default: the results folder).

    The files are rows.csv, rows.md, rows.tex, rows.json, report.html, provenance.json and, in
    tables/, further tables. against.json is written if the report compares with another study, and
    plots/ (SVG, PDF and PNG of each plot) unless `pictures` is False. A sweep's report also has
    best.yaml, the best spec, or best-N.yaml for each trial N on its Pareto front. The same Records
    give the same bytes, except in PDF, where vl-convert's order of resources varies.

    Raises UserError if no row matches `baseline`, or the study or paper `against` does not exist.
    """
    report = collect(results, baseline, against, further)
    folder = out or results.folder
    written = contents(report)
    for file in outdated(folder, written) if report.sweep else ():
        file.unlink()
    for name, content in written.items():
        write_whole(folder / name, content.encode("utf-8"))
    for plot in report.plots if pictures else ():
        for suffix, drawn in p.pictures(plot).items():
            write_whole(folder / "plots" / f"{plot.name}{suffix}", drawn)
    return report


def contents(report: Report) -> dict[str, str]:
    """Name -> content of every text file of a report."""
    from raysuite.report.page import page  # imported here: rows alone do not need Jinja2

    searched = report.sweep.study.keys if report.sweep else ()
    return {
        "rows.csv": csv_text(
            report.row_data, (searched_values(row, searched) for row in report.rows)
        ),
        "rows.md": report.markdown(),
        "rows.json": json_text(report.data()),
        "provenance.json": json_text(report.provenance),
        "rows.tex": rows_latex(report.rows),
        **{name: text for sheet in _sheets(report) for name, text in sheet_files(sheet).items()},
        **(_against(report.comparison) if report.comparison else {}),
        **(report.sweep.files() if report.sweep else {}),
        "report.html": page(report),
    }


def _sheets(report: Report) -> Iterator[Sheet]:
    """Every table that is written into tables/, except those of a sweep."""
    yield from filter(None, [class_sheet(report.rows)])
    yield gate_sheet(report.runs, report.names)
    yield from provenance_sheets(report.provenance)
    yield from comparison_sheets(report.comparison) if report.comparison else ()
    yield from report.sheets


def _against(comparison: Comparison) -> dict[str, str]:
    """File name -> content of the comparison as data: JSON, and CSV with unrounded values."""
    files = {"against.json": json_text(finite(comparison.data()))}
    if comparison.lines:
        files["tables/against.csv"] = csv_of(finite(line.data()) for line in comparison.lines)
    return files
