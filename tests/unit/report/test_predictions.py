"""Predictions beside measurements, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysuite.records.predicted import Interval, RunPredicted
from raysuite.report.builders import MOST_LINES
from raysuite.report.plot import MOST_SORTED, labels
from raysuite.report.predictions import _error, interval, predictions_plot, predictions_sheet
from tests.fake_calibration import SEEN, measured, plans


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (100.0, "+10.0%"),
        (121.0, "-9.1%"),
        (121.0 + 1e-9, "-9.1%"),
        (122.0, "-9.8% (outside)"),
        (88.0, "+25.0% (outside)"),
        (None, "–"),
    ],
)
def test_the_error_is_of_the_prediction_as_a_part_of_the_measurement(
    measured: float | None, told: str
) -> None:
    assert _error(Interval(110.0, 100.0, 121.0), measured) == told
    assert _error(None, measured) == "–"


def test_an_interval_is_from_low_to_high() -> None:
    assert interval(Interval(12.0, 11.0, 13.5), "{:.1f}".format) == "12.0 [11.0, 13.5]"
    assert interval(None) == "–"


def test_predictions_have_their_intervals_and_no_order_of_their_own() -> None:
    runs = [measured(plan) for plan in plans(SEEN)[:3]]
    predicted = {
        run.run_id: RunPredicted(
            run_id=run.run_id, calibration="c.yaml", throughput=Interval(value, 8.0, 13.0)
        )
        for run, value in zip(runs, (10.0, 12.0, 11.0), strict=True)
    }
    sheet = predictions_sheet(runs, predicted)
    assert sheet is not None
    assert [line[:2] for line in sheet.cells] == [
        (run.name, interval(predicted[run.run_id].throughput)) for run in runs
    ]


def test_the_measured_memory_is_the_devices_where_the_run_has_one() -> None:
    run = measured(plans(SEEN)[0])
    for device, told in ((3 * 2**30, "3.00 GiB"), (None, "2.00 GiB")):
        each = replace(run, peak_process_bytes=2 * 2**30, peak_device_bytes=device)
        predicted = RunPredicted(
            run_id=run.run_id, calibration="c.yaml", memory_bytes=Interval(2**30, 2**30, 2**31)
        )
        sheet = predictions_sheet([each], {run.run_id: predicted})
        assert sheet is not None
        assert dict(zip(sheet.header, sheet.cells[0], strict=True))["Memory measured"] == told


def test_of_many_predicted_runs_the_first_are_drawn() -> None:
    run = measured(plans(SEEN)[0])
    runs = [replace(run, plan=run.plan | {"run_id": str(each)}) for each in range(MOST_LINES + 2)]
    predicted = {
        each.run_id: RunPredicted(
            run_id=each.run_id, calibration="c.yaml", throughput=Interval(10.0, 8.0, 13.0)
        )
        for each in runs
    }
    plot = predictions_plot(runs, predicted)
    assert plot is not None
    assert f"The first {MOST_LINES} of {MOST_LINES + 2} runs are drawn." in plot.note
    assert {len(trace["y"]) for trace in plot.traces} == {MOST_LINES}
    few = predictions_plot(runs[:2], predicted)
    assert few is not None
    assert "first" not in few.note


def test_many_names_keep_the_order_of_the_data() -> None:
    names = [f"name {each}" for each in range(MOST_SORTED + 1)]
    assert labels(names)["sort"] is None
    assert labels(names[1:])["sort"] == names[1:]
