"""A row beside a paper's ratio or range: what ours is over, and whether theirs holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raysuite.records import Row, make_rows, results_figures
from raysuite.records.statistics import Stat, summarize
from raysuite.report.against import against_published, published
from tests.fake_results import TWELVE_ROWS, write_results

AACH = published("aach2023")
[OVER_NATIVE] = [value for value in AACH.values if value.quantity == "throughput_over_native"]
ALONE = TWELVE_ROWS.replace("[1, 2]", "[2]").replace("[ddp, horovod, deepspeed]", "[ddp]")


def rows_of(folder: Path, spec: str) -> list[Row]:
    return make_rows(results_figures(write_results(folder, spec, elsewhere=True)))


def with_throughput(row: Row, found: Stat) -> Row:
    return replace(row, figures={**row.figures, "throughput": found})


def over_native(rows: list[Row], speeds: list[list[float]], loader: str = "") -> dict[str, float]:
    """Each row's throughput over native, where the rows have these speeds."""
    measured = [
        with_throughput(row, summarize(each)) for row, each in zip(rows, speeds, strict=True)
    ]
    paper = replace(AACH, values=(replace(OVER_NATIVE, loader=loader),))
    return {line.ours_name: line.ours.value for line in against_published(measured, paper).lines}


def test_throughput_is_over_the_native_row_that_is_equal_in_all_else(tmp_path):
    rows = rows_of(tmp_path, ALONE + "  training.precision: [fp32, bf16]\n")
    speed = {"native · 2 workers · precision=fp32": 100.0, "dali · 2 workers · precision=fp32": 130}
    speed |= {"native · 2 workers · precision=bf16": 250, "dali · 2 workers · precision=bf16": 300}
    found = over_native(rows, [[speed[row.name.removeprefix("ddp · ")]] for row in rows])
    assert found == {
        "ddp · dali · 2 workers · precision=fp32": 1.3,
        "ddp · dali · 2 workers · precision=bf16": 1.2,
    }


def test_the_native_row_may_read_other_files_where_none_reads_the_same(tmp_path):
    formats = "  data.format: [folder, tfrecord]\n"
    rows = rows_of(tmp_path, ALONE + formats)
    dali = [row for row in rows if row.loader == "dali"]
    native = [row for row in rows if row.loader == "native"]
    speeds = [[100.0], [200.0], [150.0], [240.0]]
    assert list(over_native([*native, *dali], speeds).values()) == [1.5, 1.2]
    assert list(over_native([native[0], dali[1]], [[100.0], [150.0]]).values()) == [1.5]


COUPLED = ALONE.replace("data: digits", "data: mnist").partition("  loader:")[0]
A_FORM_EACH = "  loader, data.format: [[native, folder], [dali, tfrecord]]\n"


def test_the_native_row_reads_from_the_same_place(tmp_path):
    rows = rows_of(tmp_path, f"{COUPLED}  data.root: [/fast, /slow]\n{A_FORM_EACH}")
    speed = {"native /fast": 100.0, "native /slow": 50.0, "dali /fast": 120.0, "dali /slow": 90.0}
    of = [f"{row.loader} {row.runs[0].plan['spec']['data']['root']}" for row in rows]
    found = over_native(rows, [[speed[each]] for each in of])
    assert sorted(found.values()) == [1.2, 1.8]
    left = [row for row, name in zip(rows, of, strict=True) if name != "native /slow"]
    assert len(over_native(left, [[100.0]] * 3)) == 1
