"""LaTeX tables: complete, and safe from what names may hold."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from raysuite.records import make_rows, results_figures
from raysuite.records.statistics import accuracy
from raysuite.report import build, text
from raysuite.report.raw_data import csv_text, row_data
from raysuite.report.tables import (
    Sheet,
    _scripts,
    csv_sheet,
    gate_sheet,
    latex,
    latex_text,
    markdown_sheet,
    rows_latex,
    rows_sheet,
)
from tests.fake_results import write_results

EVIL = r"50 % of_it & #1 {a} \x ~^ $5 <b> | [1] * -- – ± ·"


def sheet(*cells: tuple[str, ...]) -> Sheet:
    return Sheet("made-up", "A title_1", ("Name", "Images/s"), cells, frozenset(("Images/s",)))


def body(written: str) -> list[str]:
    inside = written.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    return inside.strip().splitlines()


def test_what_latex_reads_as_commands_is_escaped():
    written = latex_text(EVIL)
    bare = re.sub(r"\\[a-z]+\{\}|\\[%&#{}$_]|\$\\[a-z]+\$|\{\[\}|\{\]\}|\{\*\}|-\{\}-", "", written)
    assert not set(bare) & set(r"%&#{}\~^$<>|[]*_")
    assert latex_text("--baseline") == "-{}-baseline"
    assert latex_text("a – b") == "a -- b"


def test_a_remark_beside_a_figure_is_text_and_not_mathematics():
    assert _scripts("0.89 (repeats differ too much)") == "$0.89$ (repeats differ too much)"
    assert _scripts("6,150 (n = 2: 3,000 to 9,300)") == "$6{,}150$ (n = 2: 3,000 to 9,300)"
    assert _scripts("1.87 [1.80, 1,940]") == "$1.87_{1.80}^{1{,}940}$"


def test_an_infinite_figure_needs_no_package_for_its_character():
    assert latex_text(text.number(float("inf"))) == r"$\infty$"


def test_a_line_that_begins_with_a_bracket_is_no_option_of_the_line_before():
    lines = body(latex(sheet(("a", "1"), ("[2]", "3"))))
    assert [line.strip() for line in lines] == [r"a & 1 \\", r"{[}2{]} & 3 \\"]


def test_every_line_has_every_column(tmp_path):
    runs = results_figures(write_results(tmp_path, repeats=2, missing=[3]))
    for written, lines, columns in (
        (rows_latex(make_rows(runs)), 12, 6),
        (latex(gate_sheet(runs, {run.run_id: run.name for run in runs})), 24, 8),
    ):
        found = body(written)
        assert len(found) == lines
        for line in found:
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
            assert line.endswith(r"\\")
        opened, closed = (written.count(mark) - written.count(f"\\{mark}") for mark in ("{", "}"))
        assert opened == closed
        assert all(command in written for command in (r"\toprule", r"\caption{", r"\label{tab:"))


def test_a_table_names_the_fonts_that_quotes_need(tmp_path):
    rows = make_rows(results_figures(write_results(tmp_path)))
    for written in (rows_latex(rows), latex(rows_sheet(rows))):
        assert r"\usepackage[T1]{fontenc}" in written.splitlines()[0]
    assert latex_text('"') == r"\textquotedbl{}"  # which only T1 fonts have


def test_notes_name_baseline_repeats_and_intervals(tmp_path):
    rows = make_rows(results_figures(write_results(tmp_path, repeats=2)), "ddp · native · 1 worker")
    written = rows_latex(rows)
    assert r"relative to ddp $\cdot$ native $\cdot$ 1 worker" in written
    assert "2 repeats" in written
    first, *_, last = body(written)
    assert re.fullmatch(r"\s*ddp \$\\cdot\$ native & 1 & \$[^&]+\$ & -- & -- & .*", first)
    assert last.count("_{") == last.count("^{") == 4


def test_every_form_has_the_intervals_of_the_report(tmp_path):
    """Accuracies near 1, whose mean and half-width would exceed it."""
    rows = make_rows(results_figures(write_results(tmp_path, repeats=2)))
    found = accuracy([0.9875, 0.9764], 360)
    shown = replace(rows[0], figures={**rows[0].figures, "final_accuracy": found})
    assert found.mean + found.half_width > 1
    assert text.stat(shown.final_accuracy, text.percent) == "98.2 [90.9, 100.0] %"
    assert rows_latex([shown]).count("$98.2_{90.9}^{100.0}$") == 1
    assert "98.2 [90.9, 100.0] %" in markdown_sheet(rows_sheet([shown]))
    (line,) = csv.DictReader(io.StringIO(csv_text([row_data(shown)])))
    data = row_data(shown)["final_accuracy"]
    for end in ("low", "high"):
        assert float(line[f"final_accuracy_{end}"]) == data[end] == getattr(found, end)


PAPER = r"""
\documentclass[twocolumn]{article}
\usepackage{booktabs}\usepackage{array}\usepackage{graphicx}
\usepackage[T1]{fontenc}
\begin{document}
\input{rows.tex}
\begin{figure}\includegraphics[width=\columnwidth]{plots/throughput.pdf}\caption{a}\end{figure}
\begin{figure}\includegraphics[width=\columnwidth]{plots/accuracy.pdf}\caption{b}\end{figure}
\end{document}
"""


@pytest.mark.thorough
def test_a_two_column_paper_has_no_overfull_box(tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex")
    build(write_results(tmp_path, repeats=3))
    (tmp_path / "paper.tex").write_text(PAPER, "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_csv_and_markdown_have_the_same_cells():
    made = sheet(("a, b", "1,235 ± 2"), ("c | d", "–"))
    assert csv_sheet(made) == 'Name,Images/s\n"a, b","1,235 ± 2"\nc | d,–\n'
    assert "| c \\| d | – |" in markdown_sheet(made)
    assert "| --- | ---: |" in markdown_sheet(made)
