"""The files of a report: complete, escaped, self-contained and the same each time."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from raysuite.records import GateVerdict, Ratio, Results, Row, RunFailed, summarize
from raysuite.report import build, collect
from raysuite.report.page import _baselines, _measured, script_json
from raysuite.report.tables import (
    _EFFICIENCY,
    Sheet,
    _gate,
    _time_to_accuracy,
    _verdict,
    columns,
    ratios,
    rows_sheet,
    terminal_sheet,
    terminal_table,
)
from tests.fake_results import TWELVE_ROWS, write_results

EVIL = "</script><img src=x onerror=alert(1)> | \"quoted\" & 'more'"


def test_files(tmp_path):
    build(write_results(tmp_path, repeats=2))
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text("utf-8").splitlines()))
    assert len(rows) == 12
    assert float(rows[0]["throughput_images_per_s_mean"]) > 0
    speed = [float(rows[0][f"throughput_images_per_s_{each}"]) for each in ("low", "mean", "high")]
    assert speed == sorted(speed)
    assert rows[6]["baseline"] == rows[0]["name"]
    data = json.loads((tmp_path / "rows.json").read_text("utf-8"))
    assert data["format"] == 1
    assert (len(data["rows"]), len(data["runs"])) == (12, 24)
    markdown = (tmp_path / "rows.md").read_text("utf-8")
    assert markdown.count("\n| ") == 2 * 14  # variants, and their costs
    for suffix in ("svg", "pdf", "png"):
        assert len(list((tmp_path / "plots").glob(f"*.{suffix}"))) == 12


def test_a_variant_that_failed_has_its_line(tmp_path):
    lost = RunFailed(run_id="", reason="lost", message="the workers died")
    caught = RunFailed(run_id="", reason="gate", message="the ranks disagree")
    report = build(write_results(tmp_path, fails={0: lost, 4: caught}), pictures=False)
    assert rows_sheet(report.rows).styles == ("dim", "", "", "", "bad", *[""] * 7)
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text("utf-8").splitlines()))
    assert len(rows) == 12
    markdown = (tmp_path / "rows.md").read_text("utf-8")
    (line,) = re.findall(rf"^\| {re.escape(rows[0]['name'])} \| (.*failed.*)$", markdown, re.M)
    assert line.startswith("passed; run failed | – |")


def test_columns_of_a_page_are_aligned_and_hidden_by_their_classes() -> None:
    sheet = Sheet("s", "S", ("A", "B", "C"), (), frozenset("BC"), main=frozenset("AB"))
    assert sheet.classes == ["", "number ", "number extra"]
    assert replace(sheet, main=frozenset()).classes == ["", "number ", "number "]


@pytest.mark.parametrize(
    ("status", "gate", "runs", "cell"),
    [
        ("finished", "passed", 2, "passed"),
        ("finished", "failed", 2, "failed"),
        ("failed", "failed", 1, "failed"),
        ("failed", "failed", 2, "failed; failed"),
        ("failed", "passed", 1, "passed; run failed"),
        ("missing", "passed", 2, "passed; missing"),
        ("missing", "not checked", 2, "missing"),
        ("stopped", "not checked", 1, "not checked; run stopped"),
    ],
)
def test_a_rows_gate_stands_beside_what_its_runs_came_to(status, gate, runs, cell) -> None:
    row: Any = SimpleNamespace(status=status, gate=gate, runs=[None] * runs)
    assert _gate(row) == cell


def test_a_time_to_accuracy_that_some_repeats_missed_is_their_number() -> None:
    def cell(times: list[float], epochs: list[float], target: float | None, counted: int) -> str:
        row: Any = SimpleNamespace(
            time_to_accuracy=summarize(times) if times else None,
            epochs_to_accuracy=summarize(epochs) if epochs else None,
            counted=[SimpleNamespace(target=target)] * counted,
            target_met=1,
        )
        return _time_to_accuracy(row, "{:.0f} s".format)

    assert cell([], [], 0.9, 3) == "met by 1 of 3"
    assert cell([], [], None, 3) == cell([], [], None, 0) == "–"
    assert cell([8.0], [2.0], 0.9, 1) == "8 s (n = 1), 2 epochs"
    assert cell([8.0], [], 0.9, 1) == "–"


def test_an_efficiency_above_one_is_marked_and_a_baselines_is_one() -> None:
    def cell(baseline: bool, superlinear: bool, known: bool = True) -> str:
        efficiency = Ratio(1.25, 1.2, 1.3) if known else None
        row: Any = SimpleNamespace(
            is_baseline=baseline, efficiency=efficiency, superlinear=superlinear
        )
        return _EFFICIENCY.write(row)

    assert cell(True, False) == "1"
    assert cell(False, True) == "1.25 [1.20, 1.30] (above 1)"
    assert cell(False, False) == "1.25 [1.20, 1.30]"
    assert cell(True, False, known=False) == "–"


def test_ratios_of_rows_with_as_many_workers_as_their_baseline_are_speed_ups_alone(tmp_path):
    one = TWELVE_ROWS.replace("[1, 2]", "[2]")
    results = write_results(tmp_path, spec=one)
    titles = {
        baseline: [column.title for column in ratios(collect(results, baseline).rows)]
        for baseline in (None, "horovod · native")
    }
    assert titles == {None: ["Against the best"], "horovod · native": ["Speed-up"]}
    several = collect(write_results(tmp_path / "several")).rows
    assert [column.title for column in ratios(several)] == ["Speed-up", "Efficiency"]
    assert rows_sheet(several).main == {"Variant", "Images/s", "Speed-up", "Accuracy"}
    alone = collect(write_results(tmp_path / "alone", missing=range(1, 12))).rows
    assert [column.title for column in ratios(alone)] == ["Speed-up", "Efficiency"]


def test_a_verdict_has_the_errors_that_were_measured() -> None:
    verdict = GateVerdict(
        run_id="", strategy="ddp", workers=2, passed=True, ranks_equal=True, error=1.2e-7,
        error_batchnorm=3.4e-7, error_16_bits=0.05, tolerance=1e-5, rule="equal", steps=3,
        cached=True, message="slow",
    )  # fmt: skip
    errors = ("1.2e-07", "3.4e-07", "0.05", "1e-05")
    unbound = verdict.model_copy(update={"tolerance": None, "cached": False})
    in_fp32 = verdict.model_copy(update={"error_16_bits": None, "rule": "", "message": ""})
    for each, cells in (
        (verdict, (*errors, "equal; slow; checked earlier on an equal machine")),
        (unbound, (*errors[:3], "–", "equal; slow")),
        (in_fp32, (*errors[:2], "–", errors[3], "checked earlier on an equal machine")),
        (None, ("–",) * 5),
    ):
        run: Any = SimpleNamespace(plan={"seed": 7}, gate="passed", verdict=each)
        assert _verdict(run, "name") == ("name", "7", "passed", *cells)


def test_lines_of_a_terminal_are_red_for_errors_and_yellow_without_figures() -> None:
    lines = (("a", "1"), ("b", "2"), ("c", "3"))
    sheet = Sheet("s", "S", ("A", "B"), lines, styles=("bad", "dim", ""))
    table = terminal_sheet(sheet, without=["A"])
    assert [row.style for row in table.rows] == ["red", "yellow", None]
    assert [[str(cell) for cell in column.cells] for column in table.columns] == [["1", "2", "3"]]


def test_a_page_has_the_time_of_the_last_record() -> None:
    def run(*times: float | None) -> Any:
        started, end, *epochs = (each and SimpleNamespace(time=each) for each in times)
        return SimpleNamespace(started=started, end=end, epochs=epochs)

    assert _measured([run(60, 3600, 120), run(90, None, 90061, 200)]) == "1970-01-02 01:01 UTC"
    assert _measured([run(None, None)]) == "nothing so far"


def test_the_same_records_give_the_same_bytes(tmp_path):
    results = write_results(
        tmp_path / "a", fails={0: RunFailed(run_id="", reason="error", message="")}
    )

    def written() -> dict[str, bytes]:
        build(results, pictures=False)
        files = (file for file in results.folder.rglob("*") if file.is_file())
        return {file.name: file.read_bytes() for file in files}

    assert written() == written()


def test_out_leaves_the_results_alone(tmp_path):
    results = write_results(tmp_path / "a")
    build(results, tmp_path / "b", pictures=False)
    assert not (results.folder / "report.html").exists()
    assert (tmp_path / "b" / "report.html").exists()


def test_the_page_asks_nothing_of_any_host(tmp_path):
    build(write_results(tmp_path), pictures=False)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "default-src 'none'" in page
    assert len(page.encode()) < 2_000_000
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", ours)
    assert "http" not in re.sub(r"http-equiv|https://vega.github.io/schema/", "", ours)


def test_the_page_escapes_what_people_wrote(tmp_path):
    spec = TWELVE_ROWS.replace("Made-up figures for tests", json.dumps(EVIL))
    results = write_results(
        tmp_path,
        spec=spec,
        fails={0: RunFailed(run_id="", reason="error", message=EVIL, detail=EVIL)},
    )
    build(results, pictures=False)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<img src=x" not in page
    assert html.escape("<img src=x onerror=alert(1)>") in page
    assert "<img" not in (tmp_path / "rows.md").read_text("utf-8")


def test_names_in_plots_are_no_markup(tmp_path):
    strategy = {"name": "custom", "target": "mine:Own", "options": {"note": "<b>x</b></script>"}}
    spec = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", json.dumps(["ddp", strategy]))
    report = collect(write_results(tmp_path, spec=spec))
    assert any("<b>" in t["series"] for p in report.plots for t in p.traces if p.name == "loss")
    written = script_json({plot.name: plot.data() for plot in report.plots})
    assert "<" not in written
    build(Results(tmp_path), pictures=False)
    assert "<b>x</b>" not in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("missing", [(), (0, 5), range(12)])
def test_every_plot_has_a_description(tmp_path, missing):
    report = collect(write_results(tmp_path, repeats=1, missing=missing))
    assert bool(report.plots) == (len(missing) < 12)
    for plot in report.plots:
        assert plot.description


def test_a_run_that_the_gate_caught_is_in_no_plot(tmp_path):
    caught = RunFailed(run_id="", reason="gate", message="differs")
    report = collect(write_results(tmp_path, fails={4: caught}))
    for plot in report.plots:
        keys = "".join("".join(trace.get("key", "")) for trace in plot.traces)
        assert json.dumps("horovod · native · 1 worker") not in keys


def test_long_runs_are_thinned(tmp_path):
    spec = TWELVE_ROWS.replace("epochs: 6", "epochs: 100").replace("[1, 2]", "[1]")
    report = collect(write_results(tmp_path, spec=spec, missing=range(1, 6)))
    for plot in report.plots:
        assert max(len(trace["x"]) for trace in plot.traces) <= 400


def test_a_diverged_run_has_gaps_and_valid_json(tmp_path):
    results = write_results(tmp_path)
    file = results.journal_file(results.plans()[0]["run_id"])
    text = re.sub(r'"losses":\[[^,]+,', '"losses":[NaN,', file.read_text("utf-8"))
    file.write_text(text, "utf-8")
    build(results, pictures=False)
    assert '"loss"' in script_json({p.name: p.data() for p in collect(results).plots})
    json.loads(
        (tmp_path / "rows.json").read_text("utf-8"),
        parse_constant=lambda name: pytest.fail(f"{name} is not JSON"),
    )


def test_further_tables_keep_the_baseline_of_each_row(tmp_path):
    given: list[Row] = []
    asked = "horovod · native · 2 workers"
    report = collect(write_results(tmp_path), asked, further=lambda rows: given.extend(rows) or ())
    assert {row.baseline for row in report.rows} == {asked}
    assert len(given) == 12
    for row in given:
        assert row.baseline == row.name.replace("2 workers", "1 worker")


@pytest.mark.parametrize("width", [80, 160])
def test_terminal_table(tmp_path, width):
    rows = collect(write_results(tmp_path, repeats=3)).rows
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal_table(rows, width))
    shown = console.export_text()
    assert "Images/s" in shown
    hidden = shown.partition("hidden below")[2]
    assert ("Memory" in shown and not hidden) == (width == 160)
    assert ("Memory" in hidden and "Epoch" in hidden) == (width == 80)
    assert "baseline" in shown
    assert "…" not in shown


def test_nothing_is_cut_on_a_terminal_of_40_columns(tmp_path):
    rows = collect(write_results(tmp_path, repeats=2)).rows
    console = Console(width=40, record=True, file=io.StringIO())
    console.print(terminal_table(rows, 40))
    assert "…" not in console.export_text()


@pytest.mark.parametrize(("width", "bare"), [(80, True), (130, False)])
def test_a_narrow_terminal_keeps_the_intervals_or_names_them(tmp_path, width, bare):
    table = terminal_table(collect(write_results(tmp_path, repeats=3)).rows, width)
    cells = {str(column.header): str([*column.cells][-1]) for column in table.columns}
    without = {title for title in ("Speed-up", "Efficiency", "Accuracy") if "[" not in cells[title]}
    named = str(table.caption).partition("wider terminal: ")[2].split(", ")
    assert without == ({*named} if bare else set())
    assert bare == bool(without)
    assert "[" in cells["Images/s"]


def test_a_single_run_keeps_its_n_on_a_narrow_terminal(tmp_path):
    rows = collect(write_results(tmp_path)).rows
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_table(rows, 80))
    assert "(n = 1)" in console.export_text()


def test_every_figure_of_repeats_has_its_interval(tmp_path):
    rows = collect(write_results(tmp_path, repeats=3)).rows
    figures = [column for column in columns(rows) if column.number]
    assert len(figures) == 8
    for column in figures:
        of_baselines = "baseline" if column.title == "Speed-up" else "1"
        bare = {cell for row in rows if "[" not in (cell := column.write(row))}
        assert bare <= {of_baselines}, column.title
    [time] = [column for column in figures if column.title == "Time to accuracy"]
    assert all(
        time.write(row).endswith(f", {row.epochs_to_accuracy.mean:.3g} epochs") for row in rows
    )


def test_a_pages_data_has_six_digits_and_no_tags() -> None:
    data = {"<b>": [1.23456789, 1234567, 123456.7, float("nan"), True, "1.23456789"]}
    written = script_json(data)
    assert written == '{"\\u003cb\\u003e":[1.23457,1234567,123457.0,null,true,"1.23456789"]}'


def test_a_baseline_is_listed_with_what_is_measured_against_it() -> None:
    def row(name: str, baseline: str | None) -> Any:
        return SimpleNamespace(name=name, baseline=baseline, is_baseline=name == baseline)

    rows = [row("a", "a"), row("b", "a"), row("c", None), row("d", "d"), row("e", "a")]
    assert _baselines(rows).cells == (("a", "b; e"), ("d", "itself alone"))
