"""--check: tampering with any file or journal is found, and named by file, row and column."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.errors import UserError
from raysuite.records import Results, RunFailed, RunStarted
from raysuite.records.statistics import are_blocks
from raysuite.report import build
from raysuite.report.check import Mismatch, check
from raysuite.report.check_recompute import recount
from tests.fake_results import TWELVE_ROWS, write_results

FEW = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[single, ddp]").replace(
    "[native, dali]", "[native]"
)
FAILED = RunFailed(run_id="", reason="error", message="made up")
CAUGHT = RunFailed(run_id="", reason="gate", message="differs")


def made(folder: Path, spec: str = FEW, repeats: int = 2, **others) -> Results:
    results = write_results(folder, spec, repeats, **others)
    build(results, pictures=False)
    return results


DDP = FEW.replace("[single, ddp]", "[ddp]")


@pytest.fixture
def results(tmp_path) -> Results:
    return made(tmp_path, DDP)


def tamper(file: Path, pattern: str, by: str, flags: int = 0) -> None:
    content = file.read_text("utf-8")
    changed = re.sub(pattern, by, content, count=1, flags=flags)
    assert changed != content, f"{pattern} is not in {file.name}"
    file.write_text(changed, "utf-8")


def one(found: list[Mismatch], file: str) -> Mismatch:
    assert {each.file for each in found} == {file}, [str(each) for each in found]
    return found[0]


@pytest.mark.parametrize(
    "others",
    [
        {"repeats": 1},
        {"repeats": 3},
        {"fails": {0: FAILED, 3: CAUGHT}},
        {"missing": [0, 1, 2, 3]},
        {"missing": [1]},
    ],
)
def test_a_report_agrees_with_its_journals(tmp_path, others):
    done = check(made(tmp_path, DDP, **others))
    assert [str(each) for each in done.mismatches] == []
    assert done.figures > 100
    assert done.cells > 200
    assert "all agree" in done.summary


def test_a_report_against_another_row_agrees_too(tmp_path):
    results = write_results(tmp_path, DDP, 2)
    build(results, baseline="2 workers", pictures=False, against="published:aach2023")
    assert check(results).mismatches == []
    tamper(tmp_path / "tables/against-recomputed.tex", r"0\.91", "0.76")
    assert one(check(results).mismatches, "tables/against-recomputed.tex").written == "0.76"


def test_a_batch_found_by_trial_by_both_routes(tmp_path):
    spec = DDP.replace("global_batch: 64", "global_batch: 64, accumulate: auto")
    results = made(tmp_path, spec, sizes={1: 16, 2: 16})
    assert check(results).mismatches == []
    one, two = recount(tmp_path).rows
    assert (one["speed_up.value"], two["speed_up.value"] > 1) == (1.0, True)


def test_a_row_of_which_a_part_was_found_by_trial_by_both_routes(tmp_path):
    spec = DDP.replace("global_batch: 64", "global_batch: 64, accumulate: 1")
    spec += "  training.accumulate: [1, auto]\n"
    assert check(made(tmp_path, spec, sizes={1: 64, 2: 16})).mismatches == []
    speed_ups = [row["speed_up.value"] for row in recount(tmp_path).rows]
    assert [speed_up > 1 for speed_up in speed_ups] == [False, True, False]


def test_another_study_that_is_gone_is_told_and_the_rest_is_checked(tmp_path):
    write_results(tmp_path / "there", DDP)
    results = write_results(tmp_path / "here", DDP)
    build(results, pictures=False, against=str(tmp_path / "there"))
    assert check(results).mismatches == []
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    done = check(results)
    assert done.mismatches == []
    assert "is not checked" in done.notes[0]


@pytest.mark.parametrize(
    ("file", "pattern", "by", "column"),
    [
        ("rows.json", r'("throughput_images_per_s": \{\s+"mean": )\d', r"\g<1>7", "mean"),
        ("rows.json", r'("efficiency": \{\s+"value": 1\.0,\s+"low": )1', r"\g<1>0", "low"),
        ("rows.json", r'"final_accuracy": 0\.', '"final_accuracy": 1.', "final_accuracy"),
        ("rows.json", r'"gate": "passed"', '"gate": "not needed"', "gate"),
        ("rows.csv", r",False,", ",True,", "efficiency_above_one"),
        ("rows.csv", r"(passed,[^,]+,[^,]*,)\d", r"\g<1>7", "throughput"),
        ("rows.md", r"baseline \|", "2.00 |", "Speed-up"),
        ("rows.tex", r"& passed", "& failed", "Gate"),
        ("tables/gate.csv", r",passed,", ",failed,", "Verdict"),
        ("provenance.json", r'"seed": 0', '"seed": 5', "seed"),
        ("report.html", r'(class="number" data-value=")\d', r"\g<1>7", "Images/s"),
        ("report.html", r"<td>passed</td>|(>)passed(</td>)", r"\1failed\2", ""),
    ],
)
def test_a_file_that_was_changed(results, file, pattern, by, column):
    tamper(results.folder / file, pattern, by)
    found = one(check(results).mismatches, file)
    assert column in found.column
    assert found.written != found.recomputed
    assert found.row


def test_a_plot_that_was_changed(results):
    tamper(
        results.folder / "report.html", r'("figures">.*?"y":\[)[^,\]]+', r"\g<1>7", flags=re.DOTALL
    )
    assert one(check(results).mismatches, "report.html").row.startswith("plot ")


@pytest.mark.parametrize("key", ["steady_seconds", "val_accuracy", "images", "seconds"])
def test_a_journal_that_was_changed(results, key):
    file = results.journal_file(results.plans()[0]["run_id"])
    content = file.read_text("utf-8")  # of the second epoch: the first holds the warm-up
    start = content.index('"epoch":1,')
    changed = re.sub(rf'("{key}":)[\d.]+', r"\g<1>77", content[start:], count=1)
    file.write_text(content[:start] + changed, "utf-8")
    files = {each.file for each in check(results).mismatches}
    assert "provenance.json" in files, "its SHA-256 has changed"
    assert "rows.json" in files
    assert "report.html" in files


def test_a_journal_that_is_gone(results):
    results.journal_file(results.plans()[0]["run_id"]).unlink()
    done = check(results)
    runs = {each.column for each in done.mismatches if each.file == "rows.json"}
    assert {"status", "throughput_images_per_s"} <= runs


def test_a_line_that_was_cut_off_is_passed_over_and_told(tmp_path):
    results = write_results(tmp_path, DDP, 2)
    with results.journal_file(results.plans()[0]["run_id"]).open("a") as stream:
        stream.write('{"run_id": "x", "ki')
    build(results, pictures=False)
    done = check(results)
    assert done.mismatches == []
    assert "1 lines cannot be read" in done.notes[0] or "1 line cannot be read" in done.notes[0]


def test_files_that_are_missing_or_no_report(results):
    (results.folder / "rows.csv").unlink()
    assert one(check(results).mismatches, "rows.csv").written == "no file"
    (results.folder / "rows.json").write_text("{", "utf-8")
    with pytest.raises(UserError, match=r"is no rows\.json"):
        check(results)
    (results.folder / "rows.json").unlink()
    with pytest.raises(UserError, match="raysuite report"):
        check(results)


def test_a_retried_run_by_both_routes(tmp_path):
    results = write_results(tmp_path, DDP, 1)
    plan = results.plans()[0]
    file = results.journal_file(plan["run_id"])
    lines = file.read_text("utf-8").splitlines()
    again = RunStarted(run_id=plan["run_id"], plan=plan, environment={}, first_epoch=3)
    # taken up at epoch 3: the epochs from there on, and the end, are those of the second attempt
    retried = [*lines, again.model_dump_json(), *lines[5:]]
    file.write_text("\n".join(retried) + "\n", "utf-8")
    build(results, pictures=False)
    assert check(results).mismatches == []
    assert recount(tmp_path).runs[0]["final_accuracy"] == json.loads(lines[-2])["val_accuracy"]


def test_exit_codes_and_words(results):
    command = CliRunner()
    well = command.invoke(app, ["report", str(results.folder), "--check"])
    assert (well.exit_code, "all agree" in well.output) == (0, True)
    tamper(results.folder / "rows.csv", r"(passed,[^,]+,[^,]*,)\d", r"\g<1>7")
    wrong = command.invoke(app, ["report", str(results.folder), "--check"])
    assert wrong.exit_code == 1
    assert "rows.csv: ddp · native · 1 worker (line 2), throughput" in wrong.output
    assert "recomputed" in wrong.output
    both = command.invoke(app, ["report", str(results.folder), "--check", "--baseline", "ddp"])
    assert both.exit_code == 2


def test_both_ways_compare_round_by_round_and_leave_out_what_diverged(tmp_path):
    end = RunFailed(run_id="", reason="diverged", message="not finite", step=7)
    results = write_results(tmp_path, DDP, repeats=5, fails={0: end})
    report = build(results, pictures=False)
    assert any(are_blocks([row.throughput] * 2) for row in report.rows)
    assert check(results).mismatches == []
