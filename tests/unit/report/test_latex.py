"""LaTeX tables: complete, and safe from what names may hold."""

from __future__ import annotations

import re

import pytest

from raysuite.records import make_rows, results_figures
from raysuite.report.latex import latex, latex_text
from raysuite.report.sheet import Sheet, csv_sheet, markdown_sheet
from raysuite.report.sheets import gate_sheet, rows_sheet
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


def test_a_line_that_begins_with_a_bracket_is_no_option_of_the_line_before():
    lines = body(latex(sheet(("a", "1"), ("[2]", "3"))))
    assert [line.strip() for line in lines] == [r"a & 1 \\", r"{[}2{]} & 3 \\"]


@pytest.mark.parametrize("make", ["rows", "gate"])
def test_every_line_has_every_column(tmp_path, make):
    runs = results_figures(write_results(tmp_path, repeats=2, missing=[3]))
    made = rows_sheet(make_rows(runs)) if make == "rows" else gate_sheet(runs)
    written = latex(made)
    lines = body(written)
    assert len(lines) == len(made.cells) == (12 if make == "rows" else 24)
    for line in lines:
        assert len(re.findall(r"(?<!\\)&", line)) == len(made.header) - 1
        assert line.endswith(r"\\")
    assert written.count("{") - written.count(r"\{") == written.count("}") - written.count(r"\}")
    assert all(command in written for command in (r"\toprule", r"\caption{", r"\label{tab:"))


def test_notes_name_baseline_repeats_and_intervals(tmp_path):
    rows = make_rows(results_figures(write_results(tmp_path, repeats=2)), "ddp · native · 1 worker")
    written = latex(rows_sheet(rows))
    assert r"against ddp $\cdot$ native $\cdot$ 1 worker" in written
    assert r"2 repeats; {[} {]} are 95 \% confidence intervals" in written


def test_csv_and_markdown_have_the_same_cells():
    made = sheet(("a, b", "1,235 ± 2"), ("c | d", "–"))
    assert csv_sheet(made) == 'Name,Images/s\n"a, b","1,235 ± 2"\nc | d,–\n'
    assert "| c \\| d | – |" in markdown_sheet(made)
    assert "| --- | ---: |" in markdown_sheet(made)
