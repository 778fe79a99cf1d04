"""The plots of suites: drawn where the records allow, with the rows' own values, never empty."""

from __future__ import annotations

import io
import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
import vl_convert
from PIL import Image

from raysuite.records import (
    Ratio,
    Row,
    RunFigures,
    Slot,
    StagesMeasured,
    make_rows,
    results_figures,
)
from raysuite.records.statistics import accuracy, summarize
from raysuite.report import Report, builders, collect, plots
from raysuite.report.builders import Drawing
from raysuite.report.plot import (
    COLORS,
    SHADES,
    Plot,
    Style,
    bars,
    labels,
    line,
    pictures,
    points,
    quantity,
)
from raysuite.spec.schedules import Schedule, timeline
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_studies import ALL, write_study

ONE_ROW = TWELVE_ROWS.partition("matrix:")[0] + "strategy: single\n"


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Report]:
    return {
        study: collect(write_study(tmp_path_factory.mktemp(study), study, repeats=2))
        for study in ALL
    }


def named(report: Report, name: str) -> Plot:
    return next(plot for plot in report.plots if plot.name == name)


def drawn(name: str, rows: list[Row]) -> Plot:
    return next(plot for plot in plots.make_plots(rows) if plot.name == name)


def series_of(plot: Plot, panel: str = "", kind: str = "mean") -> dict[str, dict]:
    return {t["series"]: t for t in plot.traces if t["kind"] == kind and t["panel"] == panel}


def drawn_by(plot: Plot) -> set[str]:
    return {layer["kind"] for layer in plot.layers}


@pytest.mark.parametrize("study", ALL)
def test_vega_takes_every_plot_and_no_panel_is_empty(reports, study):
    for plot in reports[study].plots:
        vl_convert.vegalite_to_vega(plot.spec(600))
        json.dumps(plot.data(), allow_nan=False)
        assert {trace["kind"] for trace in plot.traces} <= drawn_by(plot), plot.name
        for trace in plot.traces:
            assert list(points(trace)), plot.name
            assert trace.get("panel", "") in plot.panels or plot.panels == ("",)
        held = {t.get("panel", "") for t in plot.traces if t["kind"] in ("mean", "bar")}
        assert held == set(plot.panels), plot.name
        shown = {t["series"] for t in plot.traces if t["kind"] in ("mean", "bar")}
        assert shown <= set(plot.styles), plot.name
        assert plot.title
        assert plot.note
        assert plot.description


def test_throughput_has_a_panel_a_loader_and_a_line_a_framework(reports):
    report = reports["throughput"]
    plot = named(report, "throughput")
    assert plot.columns == 2
    line = series_of(plot, "resnet32 · dali")["horovod"]
    wanted = {
        r.workers: r
        for r in report.rows
        if (r.strategy, r.loader, r.work) == ("horovod", "dali", "resnet32 on digits")
    }
    assert line["x"] == [1, 2, 4, 8]
    assert line["y"] == [wanted[workers].throughput.mean for workers in line["x"]]
    assert line["high"][0] == wanted[1].throughput.high
    dots = series_of(plot, "resnet32 · dali", "repeat")["horovod"]
    assert dots["y"][:2] == list(wanted[1].throughput.values)


@pytest.mark.parametrize(("repeats", "told"), [(1, False), (2, True)])
def test_intervals_are_told_where_there_are_some(tmp_path, repeats, told):
    report = collect(write_study(tmp_path, "throughput", repeats=repeats))
    assert ("95 % intervals" in named(report, "throughput").note) == told


def test_bars_have_their_repeats(tmp_path, reports):
    row = row_of(tmp_path)
    plot = drawn("throughput", [row])
    bar, dots = plot.traces
    assert (bar["kind"], bar["x"], bar["high"]) == (
        "bar",
        [row.throughput.mean],
        [row.throughput.high],
    )
    assert (dots["kind"], dots["x"]) == ("repeat", list(row.throughput.values))
    assert dots["y"] == bar["y"] * 2
    upright = named(reports["sets"], "epoch-time")
    epochs = [each.epoch_seconds.values for each in reports["sets"].rows if each.workers == 1]
    dots = series_of(upright, "mnist", "repeat")["ddp · 1 worker"]
    assert tuple(dots["y"][:2]) == pytest.approx(epochs[0])
    assert dots["x"][::2] == ["resnet20", "resnet32", "vgg11"]


def test_repeats_have_the_unit_of_their_mean(tmp_path):
    bar, dots = drawn("memory", [row_of(tmp_path)]).traces
    assert (bar["kind"], dots["kind"]) == ("bar", "repeat")
    assert 0 < bar["x"][0] < 1000  # MiB or GiB, no bytes
    assert sum(dots["x"]) / 2 == pytest.approx(bar["x"][0])


def test_ends_of_an_interval_have_the_unit_of_their_mean(tmp_path):
    row = row_of(tmp_path)
    bar, _ = drawn("memory", [row]).traces
    unit = row.peak_process_bytes.mean / bar["x"][0]
    assert bar["low"][0] * unit == pytest.approx(max(0.0, row.peak_process_bytes.low))
    assert bar["high"][0] * unit == pytest.approx(row.peak_process_bytes.high)


def test_efficiency_has_its_ideal_line_and_one_line_per_network(reports):
    plot = named(reports["throughput"], "efficiency-models")
    assert set(series_of(plot, "ddp · native")) == {"resnet20", "resnet32", "resnet44"}
    assert set(series_of(plot, "ddp · native", "level")["ideal"]["y"]) == {1.0}
    speed_up = named(reports["throughput"], "speed-up")
    assert series_of(speed_up, "resnet20", "level")["ideal"]["y"] == [1, 2, 4, 8]


def test_rows_of_different_baselines_are_not_joined(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]").replace("[1, 2]", "[1, 2, 4]")
    results = write_results(tmp_path, spec=spec)
    whole = collect(results, baseline="ddp")
    rows = {row.name: row for row in whole.rows}
    assert rows["horovod · native · 2 workers"].baseline == "ddp · native · 2 workers"
    assert "speed-up" not in {plot.name for plot in whole.plots}
    assert named(whole, "throughput").title.startswith("Throughput")


def test_each_number_of_workers_of_a_baseline_has_its_ideal_line(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]").replace("[1, 2]", "[1, 2, 4]")
    spec = spec.replace("[ddp, horovod, deepspeed]", "[ddp, horovod]")
    runs = results_figures(write_results(tmp_path, spec=spec))
    rows = make_rows([run for run in runs if run.variant != "horovod · native · 1 worker"])
    plot = drawn("speed-up", rows)
    lines = {name: (t["x"], t["y"]) for name, t in series_of(plot, "", "level").items()}
    assert lines == {
        "ideal from 1 worker": ([1, 2, 4], [1, 2, 4]),
        "ideal from 2 workers": ([2, 4], [1, 2]),
    }


def test_shares_add_up_to_one(reports):
    plot = named(reports["throughput"], "shares")
    for panel in plot.panels:
        parts = series_of(plot, panel, "bar").values()
        for stack in zip(*(trace["y"] for trace in parts), strict=True):
            assert sum(stack) == pytest.approx(1.0)


def test_a_step_of_a_pipeline_is_drawn_from_its_slots(reports):
    each = timeline(Schedule("1f1b", 4, (1, 1)).operations())
    slots = [
        [Slot(o.kind, o.micro_batch, o.stage, 1 + begin, 1 + end) for o, begin, end in own]
        for own in each
    ]
    found = StagesMeasured(
        run_id="",
        schedule="1f1b",
        stages=2,
        micro_batches=4,
        steps=1,
        partition=[1, 3],
        window_seconds=15.0,
        forward_seconds=[6.0, 4.0],
        backward_seconds=[8.4, 5.6],
        update_seconds=[0.0, 0.0],
        wait_seconds=[3.0, 3.0],
        bubble=[0.1, 0.3],
        ideal_bubble=0.25,
        weight_bytes=[1, 1],
        versions=[1, 1],
        activation_bytes=[2, 1],
        sent_bytes=[1, 1],
        slots=slots,
    )
    row, *others = reports["throughput"].rows
    row = replace(row, runs=(replace(row.runs[0], stages=found),))
    plot = plots.stages(Drawing([row, *others]))
    assert plot is not None
    vl_convert.vegalite_to_vega(plot.spec(600))
    assert plot.panels == [
        f"{row.name} · bubble 20% (with equal stages 25%), slowest worker 1.20 x mean",
    ]
    by_kind = series_of(plot, plot.panels[0], "slot")
    assert by_kind["forward"]["x"] == [0.0, 1e3, 6e3, 9e3, 1e3, 4e3, 7e3, 10e3]
    assert by_kind["backward"]["end"][-1] == 13e3
    assert by_kind["update"]["y"] == ["worker 0", "worker 1"]
    assert "stages" not in {plot.name for plot in reports["throughput"].plots}


def test_accuracy_over_the_global_batch_per_schedule(reports):
    report = reports["schedules"]
    lines = series_of(named(report, "accuracy-batch"))
    assert list(lines) == ["step", "cosine", "exponential"]
    for trace in lines.values():
        assert trace["x"] == [32, 64, 128, 256]
        assert all(high > y for high, y in zip(trace["high"], trace["y"], strict=True))
    largest = named(report, "accuracy-largest")
    assert "256" in largest.title
    assert list(largest.styles) == ["step", "cosine", "exponential"]


def test_batches_of_different_data_sets_are_not_joined(reports):
    plot = named(reports["sets"], "accuracy-batch")
    assert sorted(plot.panels)[0] == "resnet20 · cifar10"
    assert series_of(plot, "resnet20 · mnist")["ddp"]["x"] == [64, 256]


def test_of_many_bars_the_fastest_are_drawn(reports):
    [row, *_] = reports["throughput"].rows

    def of(n: int) -> Row:
        speed = replace(row.throughput, mean=1.0 + n)
        return replace(row, series=f"n{n}", figures={**row.figures, "throughput": speed})

    rows = [of(n) for n in range(builders.MOST_LINES + 2)]
    plot = drawn("memory", rows[::-1])
    [bars] = [trace for trace in plot.traces if trace["kind"] == "bar"]
    assert bars["y"] == [row.series for row in rows[:1:-1]]
    assert " 2 slower variants left out." in plot.note
    assert "left out" not in drawn("memory", rows[2:]).note
    assert pictures(plot)


def test_bars_per_data_set_and_network(reports):
    report = reports["sets"]
    for name in ("speed-up-works", "epoch-time", "memory"):
        plot = named(report, name)
        assert plot.panels == ["mnist", "cifar10"]
        assert plot.traces[0]["x"] == ["resnet20", "resnet32", "vgg11"]
        assert plot.same_y == (name != "epoch-time")


def test_time_to_accuracy_over_workers_and_per_variant(tmp_path, reports):
    plot = named(reports["schedules"], "time-to-accuracy")
    rows = reports["schedules"].rows
    assert plot.traces[0]["x"] == [row.time_to_accuracy.mean for row in rows]
    assert all(plot.name != "time-to-accuracy" for plot in reports["sets"].plots)
    over = named(collect(write_results(tmp_path)), "time-to-accuracy")
    assert series_of(over)["ddp · native"]["x"] == [1, 2]


def test_a_missed_target_is_no_plot(tmp_path):
    spec = TWELVE_ROWS.replace("target_accuracy: 0.9", "target_accuracy: 0.9999")
    names = {plot.name for plot in collect(write_results(tmp_path, spec=spec)).plots}
    assert "time-to-accuracy" not in names


def test_nothing_is_drawn_that_the_records_do_not_hold(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[1]").replace(", target_accuracy: 0.9", "")
    names = {plot.name for plot in collect(write_results(tmp_path, spec=spec)).plots}
    assert names == {
        "against-best",
        "throughput",
        "epoch-time",
        "data-wait",
        "accuracy",
        "loss",
        "learning-rate",
        "memory",
    }


def test_ratios_to_the_best_are_the_first_plot_where_no_number_of_workers_varies(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]")
    report = collect(write_results(tmp_path, spec=spec, repeats=5))
    assert report.plots[0].name == "against-best"
    drawn = {
        name: (series, low)
        for series, trace in series_of(report.plots[0]).items()
        for name, low in zip(trace["key"], trace["low"], strict=True)
    }
    assert len(drawn) == 6
    for row in report.rows:
        series, low = drawn[row.name]
        assert low == (None if row.is_best else row.to_best.low)
        assert ("slower" in series) == (row.to_best.differs_from_one and not row.is_best)


def test_intervals_that_are_cut_are_mentioned(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]")
    rows = collect(write_results(tmp_path, spec=spec, repeats=5)).rows
    wide = [
        row if row.is_best else replace(row, to_best=replace(row.to_best, high=2.0)) for row in rows
    ]
    notes = [plots.against_best(Drawing(each)).note for each in (rows, wide)]
    assert ["extend beyond it" in note for note in notes] == [False, True]
    [best] = [row for row in rows if row.is_best]
    slow = replace(rows[0], to_best=Ratio(0.8, 0.5, math.inf), is_best=False)
    plot = plots.against_best(Drawing([slow, best]))
    found = {
        n: e for t in plot.traces if "high" in t for n, e in zip(t["key"], t["high"], strict=True)
    }
    assert found == {slow.name: 3.0, best.name: None}  # twice as far as the axis
    assert plot.x["scale"]["domain"] == [0.95 * 0.5, 1.5]


def test_of_many_rows_the_nearest_to_the_best_are_drawn(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]")
    first = collect(write_results(tmp_path, spec=spec)).rows[0]
    rows = [
        replace(first, name=f"n{n}", to_best=Ratio(1 - n / 100, None, None), is_best=n == 0)
        for n in range(plots.MOST_COMPARED + 3)
    ]
    plot = plots.against_best(Drawing(rows[::-1]))
    drawn = [name for trace in plot.traces for name in trace.get("key", [])]
    assert drawn == [row.name for row in rows[:-3]]
    assert plot.note.endswith(" 3 slower variants left out.")
    assert "n = 1: no intervals" in plot.note
    assert "left out" not in plots.against_best(Drawing(rows[:-3])).note


def test_different_strategies_make_no_line(tmp_path):
    before, _, _ = TWELVE_ROWS.partition("matrix:")
    spec = f"{before}matrix:\n  resources.workers, strategy: [[1, single], [2, ddp]]\n"
    report = collect(write_results(tmp_path, spec=spec, repeats=2))
    assert len(report.rows) == 2
    plot = named(report, "throughput")
    bars = {y for trace in plot.traces for y in trace["y"]}
    assert bars == {"ddp · native", "single · native"}


def test_ratios_to_different_bests_are_in_different_panels(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]").replace("[native, dali]", "[native]")
    results = write_results(tmp_path, spec=f"{spec}  data.image_size: [8, 16]\n", repeats=3)
    plot = named(collect(results), "against-best")
    assert len(plot.panels) == 2
    bests = [trace for trace in plot.traces if trace["kind"] == "mean" and 1.0 in trace["x"]]
    assert {trace["panel"] for trace in bests} == set(plot.panels)
    assert {label for trace in bests for label in trace["y"]} <= {"ddp", "horovod", "deepspeed"}


def test_published_values_are_markers(tmp_path):
    spec = (
        TWELVE_ROWS.replace("model: resnet20", "model: resnet50")
        .replace("data: digits", "data: imagenet")
        .replace("[1, 2]", "[4, 1024]")
        .replace("global_batch: 64", "batch_per_worker: 64")
        .replace("epochs: 6", "epochs: 1")
    )
    results = write_results(tmp_path, spec, elsewhere=True)
    plot = named(collect(results, against="published:aach2023"), "speed-up")
    (mark,) = [trace for trace in plot.traces if trace["kind"] == "published"]
    assert (mark["x"], mark["y"]) == ([1024], [234])
    assert all(t["kind"] != "published" for p in collect(results).plots for t in p.traces)


def test_published_times_are_in_the_unit_of_ours(tmp_path):
    spec = (
        TWELVE_ROWS.replace("model: resnet20", "model: resnet50")
        .replace("data: digits", "data: imagenet")
        .replace("[1, 2]", "[512, 1024]")
        .replace("global_batch: 64", "batch_per_worker: 64")
        .replace("epochs: 6", "epochs: 90")
    )
    report = collect(write_results(tmp_path, spec, elsewhere=True), against="published:aach2023")
    lines = [line for line in report.comparison.lines if line.quantity == "training_s"]
    assert lines
    plot = named(report, "training-time")
    marks = {y for t in plot.traces if t["kind"] == "published" for y in t["y"]}
    means = {y for t in plot.traces if t["kind"] == "mean" for y in t["y"]}
    scale = max(means) / max(row.all_epochs_seconds.mean for row in report.rows)
    assert scale < 0.1  # minutes or more
    assert sorted(marks) == pytest.approx(sorted({line.theirs.value * scale for line in lines}))


def row_of(folder, spec: str = ONE_ROW, repeats: int = 2) -> Row:
    [row] = make_rows(results_figures(write_results(folder, spec, repeats)))
    return row


def with_losses(run: RunFigures, losses: list[float]) -> RunFigures:
    epoch = run.epochs[0].model_copy(update={"losses": losses})
    return replace(run, epochs=(epoch,))


def test_each_point_of_the_loss_is_of_the_same_steps_of_all_repeats(tmp_path):
    row = row_of(tmp_path)
    steps = [float(step) for step in range(1, 1251)]
    whole, cut = row.runs
    runs = (with_losses(whole, steps), with_losses(cut, steps[:400]))
    plot = plots.loss(Drawing([replace(row, runs=runs)]))
    trace, band = plot.traces
    assert len(trace["x"]) == builders.MOST_POINTS
    assert band["high"][79:81] == [pytest.approx(398), None]  # one repeat alone has no interval
    assert trace["y"] == pytest.approx(trace["x"])
    assert plot.can_be_log


@pytest.mark.parametrize("longest", [0, 1])
def test_the_learning_rate_is_that_of_the_longest_repeat(tmp_path, longest):
    row = row_of(tmp_path)
    whole = row.runs[longest]
    runs = [replace(run, epochs=run.epochs[:2]) for run in row.runs]
    runs[longest] = whole
    [trace] = drawn("learning-rate", [replace(row, runs=tuple(runs))]).traces
    rates = [rate for epoch in whole.epochs for rate in epoch.learning_rates]
    steps = len(rates)
    assert len(trace["x"]) == len(trace["y"]) == steps == 6 * whole.plan["steps_per_epoch"]
    assert trace["y"] == rates
    assert trace["x"] == [pytest.approx(6 * (n + 1) / steps) for n in range(steps)]


def test_curves_have_a_band_over_the_repeats(tmp_path):
    row = row_of(tmp_path)
    losses = [[1.0 + step + n for step in range(500)] for n in range(2)]
    losses[1][8] = math.nan  # of the fifth stretch
    runs = tuple(with_losses(run, each) for run, each in zip(row.runs, losses, strict=True))
    _, band = plots.loss(Drawing([replace(row, runs=runs)])).traces
    first = summarize([1.5, 2.5])
    assert (band["low"][0], band["high"][0]) == pytest.approx((first.low, first.high))
    assert (len(band["x"]), band["low"][4], band["high"][4]) == (250, None, None)
    more = row.runs[0].plan | {"dataset": row.runs[0].plan["dataset"] | {"val_samples": 9000}}
    uneven = (replace(row.runs[0], plan=more), row.runs[1])  # the smaller set gives the interval
    plot = drawn("accuracy", [replace(row, runs=uneven)])
    curve, band, _ = plot.traces
    accuracies = [[run.epochs[place].val_accuracy for run in row.runs] for place in range(6)]
    wanted = [accuracy(each, row.runs[1].val_samples) for each in accuracies]
    assert band["low"] == [each.low for each in wanted]
    assert band["high"] == [each.high for each in wanted]
    assert band["y"] == curve["y"]
    assert {"interval", "mean"} <= drawn_by(plot)


def test_bands_of_many_curves_are_a_few_rules(tmp_path):
    [row] = make_rows(results_figures(write_results(tmp_path, ONE_ROW, 2)))
    rows = []
    for n in range(8):
        runs = (with_losses(run, [n + 1.0 + step for step in range(100)]) for run in row.runs)
        rows.append(replace(row, name=f"{n}", strategy=f"s{n}", runs=tuple(runs)))
    bands = [t for t in plots.loss(Drawing(rows)).traces if t["kind"] == "interval"]
    assert [len(band["x"]) for band in bands] == [builders.MOST_RULES] * 8


def test_curves_that_coincide_share_an_entry_of_the_legend(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]").replace("[1, 2]", "[1]")
    rows = make_rows(results_figures(write_results(tmp_path, spec)))
    first, second, third = (with_losses(row.runs[0], [2.0, 1.0]) for row in rows)
    third = with_losses(third, [2.0, 1.5])
    runs = (first, second, third)
    rows = [replace(row, runs=(run,)) for row, run in zip(rows, runs, strict=True)]
    alike = " and ".join(row.strategy for row in rows[:2])
    assert list(plots.loss(Drawing(rows)).styles) == [alike, rows[2].strategy]


@pytest.mark.parametrize("color", [*COLORS, *SHADES])
@pytest.mark.parametrize("paper", ["#ffffff", "#14171b"])
def test_colours_are_told_from_the_page(color, paper):
    """WCAG 2.2, 1.4.11: graphical objects have a contrast of at least 3:1."""

    def luminance(code: str) -> float:
        parts = [int(code[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(color), luminance(paper)))
    assert (light + 0.05) / (dark + 0.05) >= 3


def texts(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_has_the_panels_and_the_legend_of_the_plot_and_no_title(reports):
    plot = named(reports["throughput"], "efficiency")
    made = pictures(plot)
    said = texts(made[".svg"])
    assert {*plot.panels, *plot.styles} <= set(said)
    assert plot.title not in said
    assert made[".pdf"].startswith(b"%PDF")
    image = Image.open(io.BytesIO(made[".png"]))
    assert image.width >= 1000
    assert len(image.convert("RGB").getcolors(2**24)) > 50
    again = pictures(plot)  # in a PDF, objects stand in any order
    assert (again[".svg"], again[".png"]) == (made[".svg"], made[".png"])


def test_markup_in_names_stays_text():
    name = "a <b> $x_1$"
    traces = [
        {"kind": "mean", "series": each, "x": [1, 2], "y": [1.0, None]} for each in (name, "語")
    ]
    styles = {name: Style("#000000"), "語": Style("#ff0000")}
    plot = Plot("p", "t", "", "", traces, [line()], quantity("x"), quantity("y"), styles)
    made = pictures(plot)
    assert {name, "語"} <= set(texts(made[".svg"]))
    width = Image.open(io.BytesIO(made[".png"])).width
    assert width == pytest.approx(2 * 480, rel=0.1)  # a column of a paper


def test_a_picture_has_the_whole_names_of_bars():
    ends = ("native", "dali")
    names = [f"deepspeed(zero_stage=3, offload=optimizer) · {loader}" for loader in ends]
    made = {"kind": "bar", "color": "#000000", "x": [1.0, 2.0], "y": names}
    plot = Plot("p", "t", "", "", [made], bars(offset=False), quantity("x"), labels(names))
    assert {*names} <= {*texts(pictures(plot)[".svg"])}


@pytest.mark.parametrize(("most", "places"), [(0, 100), (25, 25), (30, 25)])
def test_an_interval_is_computed_where_it_is_drawn(most, places):
    values = [{"x": float(n), "y": 1.0} for n in range(100)]
    mean = builders.p.trace("mean", values, panel="", series="a", tip="a", key="a")
    repeats = [(list(map(float, range(100))), [1.0 + k] * 100) for k in range(3)]
    seen = []

    def statistic(values, runs):
        seen.append(values)
        return summarize(values)

    band = builders.interval_trace(mean, [], repeats, statistic, most)
    assert len(seen) == len(band["x"]) == places
    assert band["x"] == mean["x"][:: 100 // places]


@pytest.mark.parametrize("short", [0, 1])
def test_a_target_is_drawn_as_far_as_the_longest_curve(tmp_path, short):
    spec = TWELVE_ROWS.replace("REPEATS", "1")
    runs = list(results_figures(write_results(tmp_path, spec, missing=range(2, 12))))[:2]
    runs[short] = replace(runs[short], epochs=runs[short].epochs[:2])
    plot = drawn("accuracy", make_rows(runs))
    ends = [trace["x"][-1] for trace in plot.traces if trace["kind"] == "mean"]
    assert sorted(ends) == [2, 6]
    [target] = [trace for trace in plot.traces if trace["kind"] == "level"]
    assert target["x"] == [0, 6]


def test_ends_of_intervals_that_cannot_be_drawn_are_left_out_and_begin_at_zero():
    found = [builders.end_of(*each) for each in ((None, 2.0), (math.inf,), (-1.0, 2.0), (3.0, 2.0))]
    assert found == [None, None, 0.0, 6.0]


def test_panels_are_in_columns_by_their_last_facet(reports):
    rows = reports["throughput"].rows  # of 1 to 8 workers, with 3 strategies, 2 loaders, 3 models
    facets = {"model loader": 2, "loader model": 3, "loader": 3, "workers": 2, "loader workers": 4}
    found = {names: builders.columns_of(rows, names.split()) for names in facets}
    assert found == facets
    assert builders.headings(rows, ["loader", "model"]) == [
        f"{loader} · {model}"
        for loader in ("native", "dali")
        for model in ("resnet20", "resnet32", "resnet44")
    ]


def test_memory_is_that_of_devices_where_a_row_has_some(tmp_path):
    row = row_of(tmp_path)
    figures = row.figures | {"peak_device_bytes": summarize([2.0**31, 2.0**31])}
    bar, *_ = drawn("memory", [replace(row, figures=figures)]).traces
    assert bar["x"] == [2.0]
    bar, *_ = drawn("memory", [row]).traces
    assert bar["x"] == [600.0]  # of the process


def test_curves_coincide_up_to_the_end_of_the_shorter_one_within_a_panel():
    nan = math.nan
    curves = {
        0: ([1.0], [1.0]),
        1: ([1.0, 2.0], [1.0, 2.0]),
        2: ([1.0, 2.0], [nan, 2.001]),
        3: ([1.0, 2.0], [1.0, 3.0]),
        4: ([1.0, 2.0], [1.0, 2.0]),
    }
    found = builders._merged(curves, ["a", "a", "a", "a", "b"])
    assert [(panel, numbers) for panel, _, numbers in found] == [
        ("a", [1, 2, 0]),
        ("a", [3]),
        ("b", [4]),
    ]
    assert found[0][1] is curves[1]


def test_a_missed_target_is_told_beside_the_times(tmp_path):
    rows = make_rows(results_figures(write_results(tmp_path)))
    missed = replace(rows[3], figures=rows[3].figures | {"time_to_accuracy": None})
    notes = [drawn("time-to-accuracy", each).note for each in (rows, [*rows[:3], missed])]
    assert "Not met" not in notes[0]
    assert notes[0].startswith("Target: 90.0 %. ")
    assert notes[1].endswith(f" Not met by {missed.name}.")


def test_only_the_first_pipelines_are_drawn(reports):
    found = StagesMeasured.model_construct(
        bubble=[0.0], ideal_bubble=0.0, forward_seconds=[1.0], backward_seconds=[1.0],
        update_seconds=[0.0], slots=[[Slot("forward", 0, 0, 0.0, 1.0)]],
    )  # fmt: skip
    row = reports["throughput"].rows[0]
    rows = [
        replace(row, name=f"n{n}", runs=(row.runs[0], replace(row.runs[1], stages=found)))
        for n in range(plots.MOST_STEPS + 1)
    ]
    plot = plots.stages(Drawing(rows))
    assert [panel.partition(" ")[0] for panel in plot.panels] == [row.name for row in rows[:-1]]
    assert plot.note.endswith(f" Only the first 8 of {plots.MOST_STEPS + 1} pipelines are drawn.")
    assert "the first 8 of" not in plots.stages(Drawing(rows[1:])).note
