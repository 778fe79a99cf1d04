"""Figures of reports against the oracle's, which shares no code with `records`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from raysuite.records import RunFailed, RunStarted
from raysuite.records.statistics import are_blocks
from raysuite.report import collect
from tests.fake_results import TWELVE_ROWS, write_results
from tests.oracle import differences, recount

DDP = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace(
    "[native, dali]", "[native]"
)
FAILED = RunFailed(run_id="", reason="error", message="made up")
CAUGHT = RunFailed(run_id="", reason="gate", message="differs")


@pytest.mark.parametrize(
    "others",
    [
        {"repeats": 1},
        {"repeats": 3},
        {"repeats": 2, "fails": {0: FAILED, 3: CAUGHT}},
        {"repeats": 2, "missing": [0, 1, 2, 3]},
        {"repeats": 2, "missing": [1]},
    ],
)
def test_a_report_equals_the_oracle(tmp_path, others):
    assert differences(write_results(tmp_path, DDP, **others)) == []


def test_a_wrong_figure_is_found(tmp_path):
    results = write_results(tmp_path, DDP, 2)
    report = collect(results)
    row = report.rows[1]
    off = replace(row.throughput, mean=row.throughput.mean * 1.001)
    wrong = replace(row, figures={**row.figures, "throughput": off})
    report = replace(report, rows=[report.rows[0], wrong, *report.rows[2:]])
    assert {(place, column) for place, column, *_ in differences(results, report)} == {
        ("rows.json rows[1]", "throughput_images_per_s.mean"),
        ("rows.csv[1]", "throughput_images_per_s.mean"),
    }


def test_a_named_baseline(tmp_path):
    results = write_results(tmp_path, DDP, 2)
    assert differences(results, collect(results, baseline="2 workers")) == []


@pytest.mark.parametrize("repeats", [3, 5])
def test_a_named_baseline_of_the_same_work(tmp_path, repeats):
    results = write_results(tmp_path, TWELVE_ROWS, repeats)
    report = collect(results, baseline="ddp · native · 2 workers")
    equal = [row for row in report.rows if row.workers == 2]
    assert are_blocks([row.throughput for row in equal]) is (repeats == 5)
    assert differences(results, report) == []


def test_a_batch_found_by_trial(tmp_path):
    spec = DDP.replace("global_batch: 64", "global_batch: 64, accumulate: auto")
    assert differences(write_results(tmp_path, spec, 2, sizes={1: 16, 2: 16})) == []
    one, two = recount(tmp_path).rows
    assert (one["speed_up.value"], two["speed_up.value"] > 1) == (1.0, True)


def test_a_row_of_which_a_part_was_found_by_trial(tmp_path):
    spec = DDP.replace("global_batch: 64", "global_batch: 64, accumulate: 1")
    spec += "  training.accumulate: [1, auto]\n"
    assert differences(write_results(tmp_path, spec, 2, sizes={1: 64, 2: 16})) == []
    speed_ups = [row["speed_up.value"] for row in recount(tmp_path).rows]
    assert [speed_up > 1 for speed_up in speed_ups] == [False, True, False]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    results = write_results(tmp_path, DDP, 2)
    with results.journal_file(results.plans()[0]["run_id"]).open("a") as stream:
        stream.write('{"run_id": "x", "ki')
    assert differences(results) == []


def test_a_retried_run(tmp_path):
    results = write_results(tmp_path, DDP, 1)
    plan = results.plans()[0]
    file = results.journal_file(plan["run_id"])
    lines = file.read_text("utf-8").splitlines()
    again = RunStarted(run_id=plan["run_id"], plan=plan, environment={}, first_epoch=3)
    # resumed at epoch 3: the epochs from there on, and the end, are those of the second attempt
    retried = [*lines, again.model_dump_json(), *lines[5:]]
    file.write_text("\n".join(retried) + "\n", "utf-8")
    assert differences(results) == []
    assert recount(tmp_path).runs[0]["final_accuracy"] == json.loads(lines[-2])["val_accuracy"]


def test_rounds_are_compared_in_pairs_and_diverged_runs_left_out(tmp_path):
    end = RunFailed(run_id="", reason="diverged", message="not finite", step=7)
    results = write_results(tmp_path, DDP, repeats=5, fails={0: end})
    report = collect(results)
    assert any(are_blocks([row.throughput] * 2) for row in report.rows)
    assert differences(results, report) == []
