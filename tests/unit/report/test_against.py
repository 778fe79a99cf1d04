"""Two studies side by side: what matches, the ratios, what is left over, and where papers err."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raysuite.cli.report import _show_comparison
from raysuite.errors import UserError
from raysuite.records import Ratio, Row, make_rows, results_figures
from raysuite.records.statistics import summarize
from raysuite.report.against import (
    PAPERS,
    Comparison,
    Line,
    Measured,
    Published,
    Unmatched,
    _differences,
    _short,
    against_published,
    against_study,
    compare,
    comparison_sheets,
    published,
    ratio_of_ratios,
)
from tests.fake_results import TWELVE_ROWS, write_results

AACH = (
    TWELVE_ROWS.replace("model: resnet20", "model: resnet50")
    .replace("data: digits", "data: imagenet")
    .replace("[1, 2]", "[4, 128, 1024]")
    .replace("global_batch: 64", "batch_per_worker: 64")
    .replace("epochs: 6", "epochs: 2")
)


def rows_of(folder, spec: str = TWELVE_ROWS, repeats: int = 1, **others) -> list[Row]:
    return make_rows(results_figures(write_results(folder, spec, repeats, **others)))


@pytest.fixture(scope="module")
def aach(tmp_path_factory) -> list[Row]:
    return rows_of(tmp_path_factory.mktemp("aach"), AACH, repeats=2, elsewhere=True)


def line(comparison: Comparison, quantity: str, ours: str, **wanted: str) -> Line:
    [found] = [
        each
        for each in comparison.lines
        if (each.quantity, each.ours_name) == (quantity, ours)
        and all(getattr(each, key) == value for key, value in wanted.items())
    ]
    return found


@pytest.mark.parametrize("name", PAPERS)
def test_every_published_value_says_where_it_stands(name):
    paper = published(name)
    assert paper.values
    assert all(value.source and value.value > 0 for value in paper.values)


def test_table_2_is_whole():
    shares = [v for v in published("aach2023").values if v.source == "Table 2"]
    assert len(shares) == 3 * 51
    [one] = [
        v
        for v in shares
        if (v.model, v.workers, v.loader, v.quantity) == ("resnet152", 64, "native", "share_io")
    ]
    assert one.value == pytest.approx(0.1642)


def test_an_unknown_paper_is_refused_with_the_names_that_are_known():
    with pytest.raises(UserError, match=r"did you mean aach2023.*published:ddlbench2020"):
        published("aach2022")


def test_efficiency_is_against_the_papers_four_workers(aach):
    found = against_published(aach, published("aach2023"))
    name = "deepspeed · native · 128 workers"
    ours = line(found, "efficiency", name)
    base, row = (
        next(r for r in aach if r.name == wanted)
        for wanted in ("deepspeed · native · 4 workers", name)
    )
    assert base.throughput
    assert row.throughput
    expected = row.throughput.mean / base.throughput.mean * 4 / 128
    assert ours.ours.value == pytest.approx(expected)
    assert ours.theirs.value == 0.33
    assert ours.ratio
    assert ours.ratio.value == pytest.approx(expected / 0.33)
    ends = ours.ours.low / 0.33, ours.ours.high / 0.33
    assert (ours.ratio.low, ours.ratio.high) == pytest.approx(ends)
    assert ours.basis == "ours"


def test_the_training_is_ninety_epochs_of_the_mean_one(aach):
    found = against_published(aach, published("aach2023"))
    row = next(each for each in aach if each.name == "ddp · native · 4 workers")
    epoch = row.figures["epoch_seconds"]
    shown = line(found, "training_s", row.name)
    assert shown.ours.value == pytest.approx(90 * epoch.mean)
    assert (shown.ours.low, shown.ours.high) == pytest.approx((90 * epoch.low, 90 * epoch.high))
    assert (shown.theirs.value, shown.bound) == (46_800, "about")
    assert shown.ratio.value == pytest.approx(90 * epoch.mean / 46_800)
    assert shown.notes == (
        "ours on cpu, theirs on GPUs",
        "ours is a projection: 90 x the mean epoch time, without validation",
        "13 h for 90 epochs",
    )


def test_a_single_run_has_no_interval(tmp_path):
    rows = rows_of(tmp_path, AACH, elsewhere=True)
    found = against_published(rows, published("aach2023"))
    # but for accuracies, as the validation set is finite
    lines = [each for each in found.lines if each.quantity != "accuracy"]
    assert {each.basis for each in lines} == {"none"}
    assert all(each.ratio is None or each.ratio.low is None for each in lines)


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_ratio_of_single_runs_is_marked(tmp_path, repeats):
    rows, others = (rows_of(tmp_path, repeats=repeats) for _ in range(2))
    table = comparison_sheets(against_study(rows, others, "there"))[0]
    written = {cells[table.header.index("Ours / theirs")] for cells in table.cells}
    assert all(cell.endswith(" (n = 1)" if repeats == 1 else "]") for cell in written)
    bases = {each.basis for each in against_study(rows, others, "there").lines if each.ratio}
    assert bases == {"none" if repeats == 1 else "both"}
    quantities = [cells[table.header.index("Quantity")] for cells in table.cells]
    assert quantities.count("Epochs to accuracy") == quantities.count("Time to accuracy") > 0


def test_a_range_has_no_ratio(aach):
    found = against_published(aach, published("aach2023"))
    over = line(found, "throughput_over_native", "ddp · dali · 4 workers")
    assert over.ratio is None
    assert (over.theirs.value, over.theirs.high) == (1.2, 1.4)


@pytest.mark.parametrize(
    ("bound", "ratio"), [("", 2), ("about", 2), ("up to", 2), ("over", None), ("under", None)]
)
def test_a_value_that_is_only_a_bound_has_no_ratio(aach, bound, ratio):
    """Which a paper's "up to" is not: it names the value that was reached."""
    name, paper = "ddp · native · 4 workers", published("aach2023")
    row = next(each for each in aach if each.name == name)
    row = replace(row, figures=row.figures | {"throughput": summarize([8.0])})
    [value] = [v for v in paper.values if v.quantity == "throughput_over_native"]
    value = replace(value, quantity="throughput", value=4.0, high=None, loader="", bound=bound)
    (found,) = against_published([row], replace(paper, values=(value,))).lines
    assert (found.bound, found.ratio and found.ratio.value) == (bound, ratio)


def with_blocks(row: Row, **blocks) -> Row:
    run = row.runs[0]
    spec = run.plan["spec"] | {key: run.plan["spec"][key] | each for key, each in blocks.items()}
    return replace(row, runs=(replace(run, plan=run.plan | {"spec": spec}),))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"framework": "gpipe"}, [1]),
        ({"framework": "pipeline"}, [1]),
        ({"loader": "dali"}, [1, 2]),
        ({"loader": "dali-gpu"}, [2]),
        ({"schedule": "step"}, [3]),
        ({"model": "resnet101"}, [2]),
        ({"model": "resnet101", "loader": "native"}, []),
        ({"data": "cifar10"}, [0, 1, 2, 3]),  # not that of an accuracy or a training
        ({"data": "cifar10", "quantity": "accuracy"}, [2]),
        ({"workers": 128}, []),
        ({"global_batch": 256}, [0, 1, 2, 3]),
        ({"global_batch": 64}, []),
    ],
)
def test_a_papers_value_is_compared_with_each_row_of_what_it_states(aach, given, named):
    row = next(each for each in aach if each.name == "ddp · native · 4 workers")
    rows = [
        row,
        with_blocks(
            row,
            strategy={"name": "pipeline", "schedule": "gpipe"},
            loader={"name": "dali", "device": "cpu"},
        ),
        with_blocks(
            row,
            model={"name": "resnet101"},
            loader={"name": "dali", "device": "gpu"},
            data={"name": "cifar10"},
        ),
        with_blocks(row, schedule={"name": "step"}),
    ]
    rows = [replace(each, name=str(n)) for n, each in enumerate(rows)]
    stated = Published(**{"quantity": "throughput", "value": 4.0, "source": "Table"} | given)
    paper = replace(published("aach2023"), values=(stated,))
    found = against_published(rows, paper)
    assert [each.ours_name for each in found.lines] == [str(n) for n in named]
    left = [each.name for each in found.unmatched if each.side == "ours"]
    assert left == [str(n) for n in range(4) if n not in named]


def test_shares_stand_beside_table_2(aach):
    def shared(row: Row) -> Row:
        io = summarize([0.2, 0.3])
        return replace(row, figures={**row.figures, "share_data": io})

    found = against_published([shared(row) for row in aach], published("aach2023"))
    ours = line(found, "share_io", "ddp · dali · 4 workers")
    assert (ours.ours.value, ours.theirs.value, ours.source) == (0.25, 0.22, "Table 2")


def test_accuracy_on_other_data_is_not_compared(tmp_path):
    spec = AACH.replace("data: imagenet", "data: cifar10").replace("[4, 128, 1024]", "[64]")
    rows = rows_of(tmp_path, spec, elsewhere=True)
    found = against_published(rows, published("aach2023"))
    assert not [each for each in found.lines if each.quantity in ("accuracy", "training_s")]
    reasons = {each.reason for each in found.unmatched if "cosine" in each.name}
    assert "no run with data imagenet" in reasons


def test_accuracy_by_schedule_and_batch(tmp_path):
    rows = rows_of(tmp_path, AACH.replace("[4, 128, 1024]", "[64]"), elsewhere=True)
    found = against_published(rows, published("aach2023"))
    assert line(found, "accuracy", "ddp · native · 64 workers").theirs.value == 0.77


def test_what_has_no_counterpart_is_listed_with_its_reason(aach):
    found = against_published(aach, published("ddlbench2020"))
    reasons = {each.name: each.reason for each in found.unmatched if each.side == "theirs"}
    assert reasons["Speed-up: gpipe · 4 workers, text"] == "no run with framework gpipe"
    ours = [each.name for each in found.unmatched if each.side == "ours"]
    assert ours == [row.name for row in aach]
    others = against_published(aach, published("aach2023")).unmatched
    titles, place = next(
        e for e in others if "native · resnet50 · 128 workers, Table 2" in e.name
    ).name.partition(": ")[::2]
    assert (titles.count(", "), place) == (2, "native · resnet50 · 128 workers, Table 2")
    reasons = {each.name: each.reason for each in others}
    assert reasons[f"{titles}: {place}"] == "this study has no such figure"


def test_a_study_against_itself(tmp_path):
    rows = rows_of(tmp_path, repeats=2)
    found = against_study(rows, rows, "there")
    assert found.unmatched == ()
    for each in found.lines:
        assert each.ours_name == each.theirs_name
        assert each.ratio is None or each.ratio.value == 1
    throughput = line(found, "throughput", rows[0].name)
    assert throughput.basis == "both"
    assert not [each for each in found.lines if each.notes]


def test_ratios_are_ours_over_theirs(tmp_path):
    """Of 300 +- 20 and 100 +- 10 images a second, from two runs each, by hand."""
    rows = rows_of(tmp_path, repeats=2)
    row = next(each for each in rows if not each.is_baseline)
    ours, theirs = (
        [
            *(each for each in rows if each.name == row.baseline),
            replace(
                row,
                figures={**row.figures, "throughput": summarize(speeds)},
                speed_up=Ratio(speed_up, speed_up / 2, speed_up * 2),
            ),
        ]
        for speeds, speed_up in (((280.0, 320.0), 6.0), ((90.0, 110.0), 1.5))
    )
    found = against_study(ours, theirs, "there")
    shown = line(found, "throughput", row.name)
    assert (shown.ours.value, shown.theirs.value) == (300, 100)
    assert shown.ratio.value == pytest.approx(3)
    # standard errors of 20 / 300 and 10 / 100; Welch's degrees of freedom of both squares u and v
    u, v = 1 / 225, 1 / 100
    freedom = (u + v) ** 2 / (u**2 + v**2)
    reach = math.exp(stats.t.isf(0.025, freedom) * math.sqrt(u + v))
    assert (shown.ratio.low, shown.ratio.high) == pytest.approx((3 / reach, 3 * reach))
    assert line(found, "speed_up", row.name).ratio.value == 4
    sheet = comparison_sheets(found)[0]
    (cells,) = (each for each in sheet.cells if {"Throughput", row.name} <= {*each})
    by_title = dict(zip(sheet.header, cells, strict=True))
    assert by_title["Our value"].startswith("300 ")
    assert by_title["Their value"].startswith("100 ")
    assert by_title["Ours / theirs"].startswith("3.00 ")


def test_variants_match_by_what_they_are_and_differences_are_told(tmp_path):
    ours = rows_of(tmp_path / "a")
    other = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace(
        "  loader: [native, dali]", "  optimizer.lr: [0.2, 0.3]"
    )
    theirs = rows_of(tmp_path / "b", other)
    found = against_study(ours, theirs, "there")
    names = {(each.ours_name, each.theirs_name) for each in found.lines}
    assert {name for name, _ in names} == {
        "ddp · native · 1 worker",
        "ddp · native · 2 workers",
    }
    assert len(names) == 2, "each variant has one counterpart"
    assert all("optimizer.lr" in each.notes[0] for each in found.lines)
    assert [each.side for each in found.unmatched].count("theirs") == 2
    assert [each.side for each in found.unmatched].count("ours") == 10


def test_options_that_an_earlier_version_had_are_no_difference(tmp_path):
    row = next(row for row in rows_of(tmp_path) if row.strategy == "horovod")
    run = row.runs[0]
    strategy = {**run.plan["spec"]["strategy"], "adasum": False, "backward_passes_per_step": None}
    spec = {**run.plan["spec"], "strategy": strategy}
    earlier = replace(row, runs=(replace(run, plan={**run.plan, "spec": spec}),))
    comparison = against_study([row], [earlier], "earlier")
    assert comparison.lines
    assert not [note for each in comparison.lines for note in each.notes]


def test_of_several_variants_the_one_with_most_options_in_common_matches(tmp_path):
    one = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2]", "[2]")
    two, other = (
        one.replace("  loader: [native, dali]", f"  optimizer.lr: {rates}")
        for rates in ("[0.3, 0.2]", "[0.5, 0.2, 0.3]")
    )
    theirs = other.replace("model: resnet20", "model: resnet20\ntags: {}").replace("tags: {}\n", "")
    found = against_study(rows_of(tmp_path / "a", two), rows_of(tmp_path / "b", theirs), "there")
    pairs = {(each.ours_name, each.theirs_name) for each in found.lines}
    assert len(pairs) == 2
    assert all(ours == their for ours, their in pairs)
    assert [each.name for each in found.unmatched] == ["ddp · native · 2 workers · lr=0.5"]
    turned = against_study(rows_of(tmp_path / "c", other), rows_of(tmp_path / "d", two), "there")
    assert len({each.theirs_name for each in turned.lines}) == 2
    assert [(each.side, each.name) for each in turned.unmatched] == [
        ("ours", "ddp · native · 2 workers · lr=0.5")
    ]


def test_four_differences_are_named_and_the_others_counted(tmp_path):
    one = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2]", "[2]")
    one = one.replace("[native, dali]", "[native]")
    more = "optimizer: {lr: 0.3, momentum: 0.5, weight_decay: 0.001, nesterov: true}\n"
    more += "measure: {warmup_steps: 7}\n"
    theirs = one.replace("schedule: {name: cosine, warmup_epochs: 1}\n", more)
    found = against_study(rows_of(tmp_path / "a", one), rows_of(tmp_path / "b", theirs), "there")
    notes = {each.notes for each in found.lines}
    assert len(notes) == 1
    *named, rest = notes.pop()
    assert len(named) == 4
    options = ("optimizer.", "schedule.", "measure.warmup_steps")
    assert all(each.startswith(options) and ", theirs " in each for each in named)
    assert rest.endswith(" more options differ")


def test_options_of_one_side_alone_differ_and_four_are_not_counted():
    ours, theirs = {"a": 1, "b": 0, "c": True, "d": "x"}, {"a": 1, "b": False, "e": 2, "f": None}
    assert _differences(ours, theirs) == [
        "c true, theirs null",
        'd "x", theirs null',
        "e null, theirs 2",
    ]
    four = {"g": 5}
    assert _differences(ours | four, theirs)[2:] == ["g 5, theirs null", "e null, theirs 2"]
    assert _differences(ours | four, theirs | {"h": 6})[4:] == ["1 more options differ"]


def test_repeats_and_seeds_are_no_difference_and_devices_are(tmp_path):
    once, twice = (rows_of(tmp_path / str(n), repeats=n) for n in (1, 2))
    assert {each.notes for each in against_study(once, twice, "there").lines} == {()}
    gpus = [replace(row, device="gpu") for row in twice]
    notes = {each.notes for each in against_study(once, gpus, "there").lines}
    assert notes == {('device "cpu", theirs "gpu"',)}


def test_a_row_without_figures_on_one_side_is_unmatched(tmp_path):
    row = rows_of(tmp_path)[1]
    nothing = replace(row, speed_up=None, efficiency=None, figures=dict.fromkeys(row.figures))
    for ours, theirs in ((row, nothing), (nothing, row)):
        found = against_study([ours], [theirs], "there")
        assert found.lines == ()
        assert found.unmatched == (Unmatched("ours", row.name, "one side has no figures"),)


def test_speed_ups_against_different_baselines_have_no_ratio(tmp_path):
    four = TWELVE_ROWS.replace("[1, 2]", "[1, 2, 4]")
    ours = rows_of(tmp_path / "a", four)
    theirs = rows_of(tmp_path / "b", four.replace("[1, 2, 4]", "[2, 4]"))
    found = against_study(ours, theirs, "there")
    name = "ddp · native · 4 workers"
    for quantity in ("speed_up", "efficiency"):
        apart = line(found, quantity, name)
        assert (apart.ratio, apart.basis) == (None, "none")
        assert apart.notes == ("baseline ddp · native · 1 worker, theirs ddp · native · 2 workers",)
    assert any("baselines of two speed-ups" in note for note in comparison_sheets(found)[0].notes)
    throughput = line(found, "throughput", name)
    assert throughput.ratio
    assert throughput.notes == ()
    again = against_study(ours, rows_of(tmp_path / "c", four), "there")
    assert line(again, "speed_up", name).ratio


def test_a_baseline_that_is_asked_for_is_that_of_both_studies(tmp_path):
    asked, name = "ddp · native · 1 worker", "horovod · native · 2 workers"
    write_results(tmp_path / "b")
    rows = make_rows(results_figures(write_results(tmp_path / "a")), asked)
    for quantity in ("speed_up", "efficiency"):
        shown = line(compare(rows, str(tmp_path / "b"), asked), quantity, name)
        assert (shown.ratio.value, shown.notes) == (1, ())


def test_a_baseline_that_the_other_study_lacks_is_refused_with_its_folder(tmp_path):
    write_results(tmp_path / "b")
    rows = rows_of(tmp_path / "a")
    with pytest.raises(UserError, match=f"in {tmp_path / 'b'}: .*'single'"):
        compare(rows, str(tmp_path / "b"), "single")


def test_rows_without_a_baseline_are_compared_without_speed_ups(tmp_path):
    rows = rows_of(tmp_path)
    alone = [replace(row, baseline=None, speed_up=None, efficiency=None) for row in rows]
    for ours, theirs in ((rows, alone), (alone, rows)):
        found = against_study(ours, theirs, "there")
        assert line(found, "throughput", rows[6].name).ratio.value == 1
        assert not {"speed_up", "efficiency"} & {each.quantity for each in found.lines}


def test_another_option_of_the_model_does_not_match(tmp_path):
    small, large = (
        TWELVE_ROWS.replace("model: resnet20", f"model: {{name: resnet18, options: {{stem: {s}}}}}")
        for s in ("small", "large")
    )
    ours, theirs = rows_of(tmp_path / "a", small), rows_of(tmp_path / "b", large)
    assert against_study(ours, theirs, "there").lines == ()


def test_other_data_does_not_match(tmp_path):
    ours = rows_of(tmp_path / "a")
    theirs = rows_of(tmp_path / "b", AACH, elsewhere=True)
    assert against_study(ours, theirs, "there").lines == ()


def test_tables_have_every_line_in_their_width(aach):
    found = against_published(aach, published("aach2023"))
    sheets = comparison_sheets(found)
    assert [s.name for s in sheets] == ["against", "against-unmatched"]
    for sheet in sheets:
        assert {len(cells) for cells in sheet.cells} == {len(sheet.header)}
    assert len(sheets[0].cells) == len(found.lines)
    assert json.loads(json.dumps(found.data()))["against"] == "published:aach2023"


positive = st.floats(0.1, 10)


@given(positive, positive, st.floats(1, 3), st.floats(1, 3))
def test_a_ratio_of_ratios_turns_round_with_its_interval(a, b, reach_a, reach_b):
    above = Ratio(a, a / reach_a, a * reach_a)
    below = Ratio(b, b / reach_b, b * reach_b)
    one, other = ratio_of_ratios(above, below), ratio_of_ratios(below, above)
    assert one
    assert other
    assert one.low is not None
    assert one.high is not None
    assert other.high is not None
    assert one.value == pytest.approx(1 / other.value)
    assert one.low == pytest.approx(1 / other.high)
    reach = math.exp(math.hypot(math.log(reach_a), math.log(reach_b)))
    assert one.high == pytest.approx(one.value * reach)


def test_the_lower_end_of_a_ratio_of_ratios_is_from_the_upper_one_of_the_divisor():
    """In powers of two, on which distances are 3, 4 and 5, 12 (MOVER: roots of sums of squares)."""
    above = Ratio(2**10, 2 ** (10 - 3), 2 ** (10 + 5))
    below = Ratio(2**4, 2 ** (4 - 12), 2 ** (4 + 4))
    found = ratio_of_ratios(above, below)
    assert found
    assert (found.value, found.low, found.high) == pytest.approx(
        (2**6, 2 ** (6 - 5), 2 ** (6 + 13))
    )


def test_a_ratio_of_ratios_without_intervals_has_none():
    assert ratio_of_ratios(Ratio(2, None, None), Ratio(1, 0.9, 1.1)) == Ratio(2, None, None)
    assert ratio_of_ratios(Ratio(2, 1, 3), Ratio(0, 0, 1)) is None
    assert ratio_of_ratios(Ratio(0, 0, 1), Ratio(2, 1, 3)) is None
    for above, below in ((Ratio(4, 0, 5), Ratio(2, 1, 3)), (Ratio(4, 3, 5), Ratio(2, 1, math.inf))):
        assert ratio_of_ratios(above, below) == Ratio(2, 0.0, math.inf)
    open_above = ratio_of_ratios(Ratio(2, 1, math.inf), Ratio(1, 0.5, 2))
    assert open_above == ratio_of_ratios(Ratio(2, 1, 3), Ratio(1, 0.0, 2))
    assert open_above == Ratio(2, 0.0, math.inf)


LINES = (
    Line(
        "throughput",
        "ours",
        Measured(300.0, 280.0, 320.0),
        "theirs",
        Measured(100.0),
        ratio=Ratio(3.0, 2.5, 3.5),
        basis="ours",
        source="Table 1",
        notes=("first", "second"),
    ),
    Line("efficiency", "ours", Measured(0.5), "theirs", Measured(0.7, high=0.8), "about"),
    Line("trials", "ours", Measured(4.0), "theirs", Measured(2.0), ratio=Ratio(2.0, None, None)),
)


def test_a_line_in_files_and_tables():
    whole = Comparison("there", "Title", LINES, (Unmatched("ours", "x", "why"),), ("remark",))
    data = whole.data()
    assert data["lines"][0] == {
        "quantity": "throughput",
        "unit": "images/s",
        "ours": "ours",
        "ours_value": 300.0,
        "ours_low": 280.0,
        "ours_high": 320.0,
        "theirs": "theirs",
        "theirs_bound": "",
        "theirs_value": 100.0,
        "theirs_low": None,
        "theirs_high": None,
        "ratio": 3.0,
        "ratio_low": 2.5,
        "ratio_high": 3.5,
        "interval_of": "ours",
        "source": "Table 1",
        "notes": "first; second",
    }
    assert [data["lines"][1][key] for key in ("ratio", "ratio_low", "ratio_high")] == [None] * 3
    assert {key: value for key, value in data.items() if key != "lines"} == {
        "format": 1,
        "against": "there",
        "title": "Title",
        "unmatched": [{"side": "ours", "name": "x", "reason": "why"}],
        "remarks": ["remark"],
    }
    assert whole.note == "3 figures side by side; 1 without a counterpart."
    lines, unmatched = comparison_sheets(whole)
    shown = [dict(zip(lines.header, cells, strict=True)) for cells in lines.cells]
    assert [each["Our value"] for each in shown] == ["300 [280, 320]", "0.50", "4"]
    assert [each["Their value"] for each in shown] == ["100", "about 0.70 to 0.80", "2"]
    assert [each["Ours / theirs"][-8:] for each in shown][1:] == ["–", " (n = 1)"]
    assert [each["Interval of"] for each in shown] == ["ours", "none", "none"]
    assert (shown[0]["Theirs"], shown[1]["Theirs"]) == ("theirs, Table 1", "theirs")
    assert (shown[0]["Notes"], shown[1]["Notes"]) == ("first; second", "")
    assert [[*each] for each in unmatched.cells] == [["x", "ours", "why"]]


def test_the_printed_reasons_are_counted_by_study(capsys: pytest.CaptureFixture[str]) -> None:
    unmatched = (
        *(Unmatched("ours", name, "no run with data mnist") for name in "ab"),
        Unmatched("theirs", "c", "no run with data mnist"),
    )
    _show_comparison(Comparison("there", "Title", LINES, unmatched))
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [
        "- 2 of ours: no run with data mnist",
        "- 1 of theirs: no run with data mnist",
    ]


def test_speed_ups_are_written_as_papers_do() -> None:
    assert [_short(each) for each in (234.0, 100.0, 10.11, 4.2)] == ["234", "100", "10.11", "4.2"]
