"""The papers' figures: drawn where the records allow, with the rows' own values, never empty."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from raysuite.records import make_rows, results_figures
from raysuite.report import Report, collect
from raysuite.report.figures import scaling
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import Plot
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_studies import ALL, write_study


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Report]:
    return {
        study: collect(write_study(tmp_path_factory.mktemp(study), study, repeats=2))
        for study in ALL
    }


def named(report: Report, name: str) -> Plot:
    return next(plot for plot in report.plots if plot.name == name)


def traces_of(plot: Plot, panel: str) -> dict[str, dict]:
    place = plot.layout["meta"]["panels"].index(panel)
    return {t["name"]: t for t in plot.traces if t["meta"]["panel"] == place}


@pytest.mark.parametrize("study", ALL)
def test_plotly_takes_every_figure_and_no_panel_is_empty(reports, study):
    for plot in reports[study].plots:
        go.Figure(plot.figure)
        json.dumps(plot.figure)
        assert all(trace["x"] and len(trace["x"]) == len(trace["y"]) for trace in plot.traces)
        panels = plot.layout.get("meta", {}).get("panels", ())
        held = {t["meta"].get("panel") for t in plot.traces if t.get("meta", {}).get("keys")}
        assert not panels or held == set(range(len(panels))), plot.name
        legend = [t["name"] for t in plot.traces if t.get("showlegend", True)]
        assert len(legend) == len(set(legend)), plot.name
        assert plot.title
        assert plot.note
        assert plot.description


def test_throughput_has_a_panel_a_loader_and_a_line_a_framework(reports):
    report = reports["throughput"]
    plot = named(report, "throughput-workers")
    assert plot.layout["grid"]["columns"] == 2
    line = traces_of(plot, "resnet32 · dali")["horovod"]
    wanted = {
        r.workers: r
        for r in report.rows
        if (r.strategy, r.loader, r.work) == ("horovod", "dali", "resnet32 on digits")
    }
    assert line["x"] == [1, 2, 4, 8]
    assert line["y"] == [wanted[workers].throughput.mean for workers in line["x"]]
    assert line["error_y"]["array"][0] == pytest.approx(
        wanted[1].throughput.high - wanted[1].throughput.mean
    )


@pytest.mark.parametrize(("repeats", "told"), [(1, False), (2, True)])
def test_intervals_are_told_where_there_are_some(tmp_path, repeats, told):
    report = collect(write_study(tmp_path, "throughput", repeats=repeats))
    for name in ("throughput", "throughput-workers"):
        assert ("95 % intervals" in named(report, name).note) == told


def test_efficiency_has_its_ideal_line_and_one_line_per_network(reports):
    plot = named(reports["throughput"], "efficiency-models")
    lines = traces_of(plot, "ddp · native")
    assert set(lines) == {"ideal", "resnet20", "resnet32", "resnet44"}
    assert set(lines["ideal"]["y"]) == {1.0}
    assert named(reports["throughput"], "speed-up").traces[0]["y"] == [1, 2, 4, 8]


def test_rows_of_different_baselines_are_not_joined(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]").replace("[1, 2]", "[1, 2, 4]")
    results = write_results(tmp_path, spec=spec)
    whole = collect(results, baseline="ddp")
    rows = {row.name: row for row in whole.rows}
    assert rows["horovod · native · 2 workers"].baseline == "ddp · native · 2 workers"
    assert "speed-up" not in {plot.name for plot in whole.plots}
    assert "throughput-workers" in {plot.name for plot in whole.plots}


def test_each_number_of_workers_of_a_baseline_has_its_ideal_line(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]").replace("[1, 2]", "[1, 2, 4]")
    spec = spec.replace("[ddp, horovod, deepspeed]", "[ddp, horovod]")
    runs = results_figures(write_results(tmp_path, spec=spec))
    rows = make_rows([run for run in runs if run.variant != "horovod · native · 1 worker"])
    plot = scaling.speed_up(rows, Styles(rows))
    lines = {t["name"]: (t["x"], t["y"]) for t in plot.traces if t["name"].startswith("ideal")}
    assert lines == {
        "ideal from 1 worker": ([1, 2, 4], [1, 2, 4]),
        "ideal from 2 workers": ([2, 4], [1, 2]),
    }


def test_shares_add_up_to_one(reports):
    plot = named(reports["throughput"], "shares")
    assert plot.layout["barmode"] == "stack"
    for panel in plot.layout["meta"]["panels"]:
        parts = traces_of(plot, panel).values()
        for stack in zip(*(trace["y"] for trace in parts), strict=True):
            assert sum(stack) == pytest.approx(1.0)


def test_accuracy_over_the_global_batch_per_schedule(reports):
    report = reports["schedules"]
    plot = named(report, "accuracy-batch")
    assert [trace["name"] for trace in plot.traces] == ["step", "cosine", "exponential"]
    for trace in plot.traces:
        assert trace["x"] == [32, 64, 128, 256]
        assert all(width > 0 for width in trace["error_y"]["array"])
    largest = named(report, "accuracy-largest")
    assert "256" in largest.title
    lines = [trace["name"] for trace in largest.traces if "keys" in trace.get("meta", {})]
    assert lines == ["step", "cosine", "exponential"]


def test_batches_of_different_data_sets_are_not_joined(reports):
    plot = named(reports["sets"], "accuracy-batch")
    assert sorted(plot.layout["meta"]["panels"])[0] == "resnet20 · cifar10"
    assert traces_of(plot, "resnet20 · mnist")["ddp"]["x"] == [64, 256]


def test_bars_per_data_set_and_network(reports):
    report = reports["sets"]
    for name in ("speed-up-works", "epoch-time", "memory"):
        plot = named(report, name)
        assert plot.layout["meta"]["panels"] == ["mnist", "cifar10"]
        assert plot.traces[0]["x"] == ["resnet20", "resnet32", "vgg11"]
    assert "matches" not in named(report, "epoch-time").layout["yaxis2"]


def test_time_to_accuracy_stands_beside_throughput(reports):
    plot = named(reports["schedules"], "time-to-accuracy")
    assert plot.layout["meta"]["panels"] == ["images per second", "seconds to the target accuracy"]
    rate, wait = plot.traces
    rows = reports["schedules"].rows
    assert rate["y"] == wait["y"]
    assert wait["x"] == [row.time_to_accuracy.mean for row in rows]
    assert all(name != "time-to-accuracy" for name in (p.name for p in reports["sets"].plots))


def test_a_missed_target_is_told_as_such(tmp_path):
    spec = TWELVE_ROWS.replace("target_accuracy: 0.9", "target_accuracy: 0.9999")
    plot = named(collect(write_results(tmp_path, spec=spec)), "time-to-accuracy")
    assert set(plot.traces[1]["text"]) == {"not met"}
    assert "met by 0 of 1" in plot.traces[1]["customdata"][0][1]


def test_nothing_is_drawn_that_the_records_do_not_hold(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[1]").replace(", target_accuracy: 0.9", "")
    names = {plot.name for plot in collect(write_results(tmp_path, spec=spec)).plots}
    assert names == {
        "throughput",
        "epoch-time",
        "data-wait",
        "accuracy",
        "loss",
        "learning-rate",
        "memory",
    }
