"""The tables of a report as Sheets, and the files that they are written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from raysuite.records import Row, RunFigures
from raysuite.report import text
from raysuite.report.against import Comparison, line_data
from raysuite.report.against_sheets import comparison_sheets
from raysuite.report.data import finite
from raysuite.report.latex import latex
from raysuite.report.provenance import provenance_sheets
from raysuite.report.sheet import Sheet, csv_lines, csv_sheet, markdown_sheet
from raysuite.report.summary import repeats_note
from raysuite.report.tables import columns

MOST_BASELINES = 4
"""Baselines that a note names one by one."""


def rows_sheet(rows: Sequence[Row]) -> Sheet:
    """The table of variants."""
    shown = columns(rows)
    return Sheet(
        name="rows",
        title="One line per variant: mean over its repeats",
        header=tuple(column.title for column in shown),
        cells=tuple(tuple(column.write(row) for column in shown) for row in rows),
        numbers=frozenset(column.title for column in shown if column.number),
        notes=(
            "Images/s over all workers, warm-up excluded; memory of the worker that had most.",
            repeats_note(rows),
            *_baselines(rows),
        ),
    )


def _baselines(rows: Sequence[Row]) -> list[str]:
    names = list(dict.fromkeys(row.baseline for row in rows if row.baseline))
    if not names:
        return []
    if len(names) > MOST_BASELINES:
        said = "against the line of each series that says baseline"
    else:
        said = "against " + text.listed(names)
    efficiency = "efficiency = speed-up * workers of the baseline / workers"
    scaling = " and ".join(sorted({f"{row.scaling} scaling" for row in rows}))
    return [f"Speed-up is {said}; {efficiency}; {scaling}."]


def gate_sheet(runs: Sequence[RunFigures]) -> Sheet:
    """The gate's verdicts, one line per run."""
    return Sheet(
        name="gate",
        title="Verdicts of the gate",
        header=(
            "Run",
            "Seed",
            "Verdict",
            "Error",
            "With BatchNorm",
            "16 bits",
            "Tolerance",
            "Rule",
        ),
        cells=tuple(_verdict(run) for run in runs),
        numbers=frozenset(("Seed", "Error", "With BatchNorm", "16 bits", "Tolerance")),
        notes=(
            "Errors are the largest relative error of a weight tensor, without unit; in 16 bits, "
            "of the network's update.",
        ),
    )


def _verdict(run: RunFigures) -> tuple[str, ...]:
    verdict = run.verdict
    begin = (run.name, str(run.plan["seed"]), run.gate)
    if verdict is None:
        return (*begin, *(text.NONE,) * 5)
    bound = "no bound" if verdict.tolerance is None else f"{verdict.tolerance:.2g}"
    errors = (f"{verdict.error:.2g}", f"{verdict.error_batchnorm:.2g}")
    short = text.NONE if verdict.error_16_bits is None else f"{verdict.error_16_bits:.2g}"
    return (*begin, *errors, short, bound, verdict.rule)


def sheet_files(
    rows: Sequence[Row],
    runs: Sequence[RunFigures],
    provenance: dict[str, Any],
    comparison: Comparison | None,
) -> dict[str, str]:
    """The files of all tables but rows.csv and rows.md: their paths, and what stands in them."""
    files = {"rows.tex": latex(rows_sheet(rows))}
    others = (gate_sheet(runs), *provenance_sheets(provenance))
    for sheet in others:
        files |= files_of(sheet)
    if comparison is None:
        return files
    for sheet in comparison_sheets(comparison):
        files |= files_of(sheet)
    data = finite(comparison.data())
    lines = [finite(line_data(line)) for line in comparison.lines]
    if lines:  # raw values, as in rows.csv
        files["tables/against.csv"] = csv_lines(
            [list(lines[0]), *(list(line.values()) for line in lines)]
        )
    return {**files, "against.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n"}


def files_of(sheet: Sheet) -> dict[str, str]:
    """A table as CSV, Markdown and LaTeX: the files' paths, and what stands in them."""
    return {
        f"tables/{sheet.name}.csv": csv_sheet(sheet),
        f"tables/{sheet.name}.md": markdown_sheet(sheet),
        f"tables/{sheet.name}.tex": latex(sheet),
    }
