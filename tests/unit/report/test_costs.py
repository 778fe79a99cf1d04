"""The table of costs, and costs as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysuite.records import (
    EpochFinished,
    Journal,
    Record,
    Results,
    RunCosts,
    RunFinished,
    make_rows,
    results_figures,
)
from raysuite.records.power import PowerUse
from raysuite.report.build import collect, contents
from raysuite.report.raw_data import csv_text, row_data, run_data
from raysuite.report.tables import costs_sheet
from tests.fake_results import FOUR_KINDS, TWELVE_ROWS, write_results

DDP = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace(
    "[native, dali]", "[native]"
)
GPU = {
    "device": "NVIDIA A100-SXM4-40GB",
    "peak_flops": 156e12,
    "peak_format": "tf32",
    "peak_source": "https://www.nvidia.com/a100.pdf",
}


def rewritten(folder: Path, costs: dict[str, Any], power: bool, repeats: int = 1) -> Results:
    """Made-up results whose runs also tell costs, and with `power` their energy."""
    plain = write_results(folder / "plain", DDP, repeats)
    results = Results(folder / "told")
    for plan in plain.plans():
        results.add_plan(plan)
        journal = Journal(results.journal_file(plan["run_id"]))
        for record in plain.records(plan["run_id"]):
            for each in told(record, costs, power, plan["workers"]):
                journal.write(each)
    return results


def told(record: Record, costs: dict[str, Any], power: bool, workers: int) -> list[Record]:
    if isinstance(record, RunFinished):
        values = {"parameters": 250, "forward_flops": 10**9, "gradient_bytes": 1000}
        return [RunCosts(run_id=record.run_id, time=record.time, **{**values, **costs}), record]
    if power and isinstance(record, EpochFinished):
        use = PowerUse(
            devices=[str(rank + 1) for rank in range(workers)],
            device_joules=[record.images / workers] * workers,
            device_busy=[0.8] * workers,
            hosts=["h"] * workers,
            host_joules=[2.0 * record.images] * workers,
        )
        return [record.model_copy(update={"power": use, "val_top5": 0.99})]
    return [record]


def rows_of(folder: Path, costs: dict[str, Any], power: bool, repeats: int = 1) -> list[Any]:
    return make_rows(results_figures(rewritten(folder, costs, power, repeats)))


def test_on_gpus(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, GPU, power=True, repeats=2)
    sheet = costs_sheet(rows)
    assert sheet is not None
    one, two = (dict(zip(sheet.header, cells, strict=True)) for cells in sheet.cells)
    assert one["Device J/image"] == "1.00 [1.00, 1.00]"
    assert two["Host J/image"] == "2.00 [2.00, 2.00]"
    assert one["Device busy"] == "80.0 [80.0, 80.0] %"
    assert one["Top-5"] == "99.0 [97.3, 99.6] %"
    assert (one["Bytes a step"], two["Bytes a step"]) == ("0 B", "1,000 B")
    assert "TFLOP/s" in one["FLOP/s"]
    mfu = rows[1].flops.mean / (2 * 156e12)
    assert two["MFU"].startswith(f"{100 * mfu:.1f} [")
    assert rows[0].projected_seconds.mean == pytest.approx(90 * rows[0].epoch_seconds.mean)
    assert rows[0].all_epochs_seconds.mean == pytest.approx(6 * rows[0].epoch_seconds.mean)
    notes = " ".join(sheet.notes)
    assert "156 TFLOP/s of each NVIDIA A100-SXM4-40GB in tf32" in notes
    assert "not given" not in notes
    assert "95 %" in notes


def test_on_cpus(tmp_path: Path) -> None:
    sheet = costs_sheet(rows_of(tmp_path, {}, power=False))
    assert sheet is not None
    assert sheet.header == ("Variant", "All epochs", "FLOP/s", "Bytes a step")
    assert any(note.startswith("MFU is not given") for note in sheet.notes)
    assert not any("Intervals" in note for note in sheet.notes)


def test_a_model_that_could_not_be_counted(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("parameters", "forward_flops", "gradient_bytes"))
    sheet = costs_sheet(rows_of(tmp_path, {**nothing, "message": "it is odd"}, power=False))
    assert sheet is not None
    assert sheet.header == ("Variant", "All epochs")
    assert any("it is odd" in note for note in sheet.notes)


def test_results_of_before(tmp_path: Path) -> None:
    rows = make_rows(results_figures(write_results(tmp_path, DDP)))
    sheet = costs_sheet(rows)
    assert sheet is not None
    assert sheet.header == ("Variant", "All epochs")
    assert row_data(rows[0])["mfu"]["mean"] is None
    assert costs_sheet([]) is None


def test_as_data(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, GPU, power=True)
    data = row_data(rows[1])
    assert data["all_reduced_bytes_per_step"] == 1000
    assert data["sent_bytes_per_step"] == 1000
    assert data["device_joules_per_image"]["mean"] == pytest.approx(1)
    assert data["final_top5"]["mean"] == 0.99
    whole = run_data(rows[1].runs[0])
    assert whole["costs"]["counted"]["device"] == GPU["device"]
    assert whole["costs"]["flop_per_s"] == pytest.approx(6e9 * rows[1].throughput.mean)
    header = csv_text(map(row_data, rows)).splitlines()[0]
    assert "flop_per_s_mean" in header
    assert "scaling" in header


@pytest.mark.parametrize("epochs", [6, 90])
def test_a_projection_is_to_the_epochs_of_the_spec(tmp_path: Path, epochs: int) -> None:
    results = write_results(tmp_path, DDP.replace("epochs: 6", f"epochs: {epochs}"))
    (plot,) = [each for each in collect(results).plots if each.name == "training-time"]
    assert plot.title.startswith(f"Time of {epochs} epochs")
    assert plot.y["scale"].get("type") != "log"


def test_in_every_form_of_the_report(tmp_path: Path) -> None:
    report = collect(rewritten(tmp_path, GPU, power=True))
    written = contents(report)
    assert "## Costs\n" in report.markdown()
    assert r"\caption{Costs}" in written["tables/costs.tex"]
    assert '<section id="costs"' in written["report.html"]
    assert written["tables/costs.csv"].startswith("Variant,All epochs,Top-5,FLOP/s,MFU,")


def test_wrappers_and_compilers_stand_beside_what_they_add_to(tmp_path: Path) -> None:
    report = collect(write_results(tmp_path, FOUR_KINDS, repeats=3))
    (sheet,) = [each for each in report.sheets if each.name == "overheads"]
    bare, compiled, wrapped, _ = report.rows
    assert [values[:2] for values in sheet.values] == [
        (compiled.name, bare.name),
        (wrapped.name, bare.name),
    ]
    assert sheet.values[0][2:] == (compiled.relative.value, 20.0, compiled.break_even.value)
    assert sheet.values[1][2:] == (wrapped.relative.value, None, None)
    data = row_data(compiled)
    assert data["beside"] == bare.name
    assert data["break_even_steps"]["low"] == compiled.break_even.low
    alone = collect(write_results(tmp_path / "alone", DDP))
    assert "overheads" not in [each.name for each in alone.sheets]
