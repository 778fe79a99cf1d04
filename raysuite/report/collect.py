"""Collect the figures of a report from the Records of a results folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from raysuite.records import Results, Row, RunFigures, make_rows, results_figures
from raysuite.records.node_checks import FILE as NODES
from raysuite.records.node_checks import findings, read_checks
from raysuite.report.against import Comparison, compare
from raysuite.report.plot import Plot
from raysuite.report.plots import make_plots
from raysuite.report.predictions import Predictions, predictions_plot, predictions_sheet
from raysuite.report.provenance import provenance
from raysuite.report.raw_data import finite, row_data, run_data
from raysuite.report.script_report import script_caveats, script_sheets
from raysuite.report.summary import Sentence, repeats_note, summarize_rows
from raysuite.report.sweep.sweep_report import SweepReport, collect_sweep
from raysuite.report.tables import (
    Sheet,
    costs_sheet,
    markdown_sheet,
    markdown_table,
    markdown_text,
    overheads_sheet,
    rows_sheet,
)

FORMAT = 1
"""Version of rows.json. It is increased by each change that breaks programs which read this file.
"""


@dataclass(frozen=True)
class Report:
    """The figures of a results folder. All figures are computed from the Records."""

    folder: Path
    rows: list[Row]
    runs: list[RunFigures]
    summary: list[Sentence]
    plots: list[Plot]
    spec_text: str
    """The text of spec.yaml; empty without this file."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the command that differ from their defaults; needed to recompute the report."""
    comparison: Comparison | None = None
    sweep: SweepReport | None = None
    """A sweep's figures that are not in the rows; None for a suite."""
    predictions: Predictions = field(default_factory=dict)
    """The predictions that `raysuite predict` wrote for the runs."""
    further: Sequence[Sheet] = ()
    """Further tables, which a caller made from the same rows."""

    @property
    def sheets(self) -> list[Sheet]:
        """The tables that the page shows between the table of the rows and the plots."""
        found = (
            costs_sheet(self.rows),
            overheads_sheet(self.rows),
            predictions_sheet(self.runs, self.predictions),
        )
        return [*(sheet for sheet in found if sheet), *script_sheets(self.rows), *self.further]

    @property
    def names(self) -> dict[str, str]:
        """Run id -> name of the run on the page; trials are named by their numbers."""
        if self.sweep is None:
            return {run.run_id: run.name for run in self.runs}
        return {run.run_id: f"trial {run.plan['index']}" for run in self.runs}

    @property
    def name(self) -> str:
        if self.sweep is not None:
            return self.sweep.study.name
        return str(self.runs[0].plan["spec"]["name"]) if self.runs else self.folder.name

    @property
    def description(self) -> str:
        return str(self.runs[0].plan["spec"]["description"]) if self.runs else ""

    @property
    def note(self) -> str:
        return repeats_note(self.rows)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The origin of the figures: the content of provenance.json."""
        return provenance(self.folder, self.runs, self.options, self.names)

    @cached_property
    def row_data(self) -> list[dict[str, Any]]:
        """The rows as plain data, for rows.csv and rows.json."""
        return [row_data(row) for row in self.rows]

    def data(self) -> dict[str, Any]:
        """The whole report as plain data: the content of rows.json."""
        data = {
            "format": FORMAT,
            "name": self.name,
            "options": self.options,
            "summary": [{"kind": s.kind, "text": s.text} for s in self.summary],
            "rows": self.row_data,
            "runs": [run_data(run) for run in self.runs],
        }
        if self.sweep is not None:
            data |= {"sweep": self.sweep.data()}
        cleaned: dict[str, Any] = finite(data)
        return cleaned

    def markdown(self) -> str:
        """Summary and tables: the content of rows.md."""
        said = (markdown_text(sentence.text) for sentence in self.summary)
        lines = [f"# {self.name}", "", *(f"- {line}" for line in said), ""]
        if self.sweep is not None:
            return "\n".join([*lines, *(markdown_sheet(sheet) for sheet in self.sweep.sheets)])
        sheets = map(markdown_sheet, self.sheets)
        return "\n".join([*lines, markdown_table(rows_sheet(self.rows)), self.note, "", *sheets])


Further = Callable[[Sequence[Row]], Sequence[Sheet]]
"""A function that makes further tables from rows that have their default baselines. It is not
called for sweeps."""


def collect(
    results: Results,
    baseline: str | None = None,
    against: str | None = None,
    further: Further = lambda rows: (),
) -> Report:
    """Collect the report of a results folder, with the tables that `further` makes. No file is
    written.

    `baseline` is the name of a row, or a part of the name: see `raysuite.records.make_rows`.
    `against` is `published:PAPER` or another results folder. Raises UserError if `baseline` or
    `against` is not found.
    """
    runs = results_figures(results)
    rows = make_rows(runs, baseline)
    spec = results.folder / "spec.yaml"
    asked = {"baseline": baseline, "against": against}
    predictions = results.predictions()
    sweep = collect_sweep(results, against)
    more: Sequence[Sheet] = ()
    if sweep is not None:
        comparison, summary, plots = sweep.comparison, sweep.summary, sweep.plots
    else:
        comparison = None if against is None else compare(rows, against, baseline)
        nodes = findings(read_checks(results.folder / NODES))
        caveats = [*script_caveats(rows), *(f"Before the suite {each}." for each in nodes)]
        summary = summarize_rows(rows, runs) + [Sentence("caveat", each) for each in caveats]
        predicted = predictions_plot(runs, predictions)
        plots = [*make_plots(rows, comparison), *([predicted] if predicted else [])]
        more = further(rows if baseline is None else make_rows(runs))
    return Report(
        folder=results.folder,
        rows=rows,
        runs=runs,
        summary=summary,
        plots=plots,
        spec_text=spec.read_text("utf-8", errors="replace") if spec.is_file() else "",
        options={key: value for key, value in asked.items() if value is not None},
        comparison=comparison,
        sweep=sweep,
        predictions=predictions,
        further=more,
    )
