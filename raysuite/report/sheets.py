"""The tables of a report as Sheets, and the files that they are written to."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from raysuite.records import Ratio, Row, RunFigures, Stat
from raysuite.report import text
from raysuite.report.against import Comparison, line_data
from raysuite.report.against_sheets import comparison_sheets
from raysuite.report.classes import class_sheet
from raysuite.report.data import finite
from raysuite.report.facets import shared, telling, written
from raysuite.report.latex import latex, latex_text
from raysuite.report.provenance import provenance_sheets
from raysuite.report.sheet import Sheet, csv_lines, csv_sheet, markdown_sheet
from raysuite.report.summary import repeats_note

MOST_BASELINES = 4
"""Baselines that a note names one by one."""


def rows_latex(rows: Sequence[Row]) -> str:
    """The table of variants that fits a column of a paper: chosen figures, names without what all
    rows share, half the width of the 95 % interval in parentheses, as siunitx writes it."""
    names = [name for name in telling(rows) if name != "workers"]
    cells = []
    for row in rows:
        figures = (
            (row.throughput, 1.0, 0),
            (None if row.is_baseline else row.speed_up, 1.0, 2),
            (None if row.is_baseline else row.efficiency, 1.0, 2),
            (row.final_accuracy, 100.0, 1),
        )
        name = written(row, names) or shared([row], ("strategy", "loader"))
        numbers = (_num(figure, scale, digits) for figure, scale, digits in figures)
        cells.append(" & ".join((latex_text(name), str(row.workers), *numbers)) + r" \\")
    notes = (
        "W: workers; S: speed-up; E: parallel efficiency; Acc.: validation accuracy after the last "
        "epoch. In parentheses: half the width of the 95 % confidence interval, in units of the "
        "last digit.",
        "Images/s over all workers, warm-up excluded. "
        + repeats_note(rows).partition(";")[0]
        + ".",
        *_baselines(rows),
    )
    head = r"Variant & W & {Images/s} & {S} & {E} & {Acc.\,/\,\%} \\"
    name_column = r">{\raggedright\arraybackslash}p{0.33\columnwidth}"
    return "\n".join(
        [
            r"% \usepackage{booktabs}  \usepackage{array}  \usepackage{siunitx}",
            r"\begin{table}",
            r"  \centering\footnotesize\setlength{\tabcolsep}{3pt}",
            r"  \caption{Means over the repeats of each variant}",
            r"  \label{tab:rows}",
            rf"  \begin{{tabular}}{{@{{}}{name_column}rrrrr@{{}}}}",
            r"    \toprule",
            f"    {head}",
            r"    \midrule",
            *(f"    {line}" for line in cells),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \par\medskip\scriptsize\raggedright",
            *(rf"  {latex_text(note)}\par" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def _num(figure: Stat | Ratio | None, scale: float, digits: int) -> str:
    """`\\num{1.33(2)}`; a dash where there is no figure."""
    if figure is None:
        return "--"
    value = figure.mean if isinstance(figure, Stat) else figure.value
    number = f"{value * scale:.{digits}f}"
    if figure.low is None or figure.high is None or not math.isfinite(figure.high):
        return rf"\num{{{number}}}"
    half = round((figure.high - figure.low) / 2 * scale * 10**digits)
    return rf"\num{{{number}({max(1, half)})}}"


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
    files = {"rows.tex": rows_latex(rows)}
    by_class = class_sheet(rows)
    others = (gate_sheet(runs), *provenance_sheets(provenance))
    for sheet in ([by_class] if by_class else []) + list(others):
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
