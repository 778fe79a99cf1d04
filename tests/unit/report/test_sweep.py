"""A sweep's report: its summary, tables, plots and best spec, from made-up journals."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import vl_convert

from raysuite.errors import UserError
from raysuite.plan import make_plans
from raysuite.records import Ratio, Results, RunFailed
from raysuite.report import build, collect
from raysuite.report.against import against_sweep
from raysuite.report.sweep import sweep_plots
from raysuite.report.sweep.importance import LEAST, Importances, _sample, importances
from raysuite.report.sweep.study import is_number, study, worker_time
from raysuite.report.sweep.sweep_plots import BEST, _names, goal_axis, importance_plot, parallel
from raysuite.report.sweep.sweep_report import best_spec
from raysuite.report.sweep.sweep_summary import (
    _alike,
    _cost,
    accuracy_interval,
    cores_of,
    side_by_side,
    summarize_sweep,
)
from raysuite.report.sweep.sweep_tables import best_sheet, costs_sheet
from raysuite.spec import parse_document
from tests.fake_results import write_results
from tests.fake_sweeps import SPACE, write_sweep
from tests.oracle import differences

MEMORY = RunFailed(
    run_id="", reason="out_of_memory", message="<b>2 GiB</b> too much", detail="Traceback: boom"
)


@pytest.fixture(scope="module")
def asha(tmp_path_factory):
    """A report of twelve trials, of which ASHA stopped nine, beside the same without it."""
    folder = tmp_path_factory.mktemp("asha")
    write_sweep(folder / "whole", scheduler="none")
    results = write_sweep(folder / "asha")
    return build(results, against=str(folder / "whole"), pictures=False)


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Two goals, one trial out of memory and one not begun."""
    results = write_sweep(
        tmp_path_factory.mktemp("front"),
        scheduler="none",
        goals=("accuracy", "throughput"),
        fails={3: MEMORY},
        missing=[11],
    )
    return build(results, pictures=False)


def said(report, kind):
    return " ".join(each.text for each in report.summary if each.kind == kind)


def test_trials_without_a_result_are_those_that_failed_and_those_that_did_not_begin(front):
    (sheet,) = (each for each in front.sweep.sheets if each.name == "failed-trials")
    assert [cells[0] for cells in sheet.cells] == ["trial 3", "trial 11"]


def test_a_study_is_none_where_no_sweep_is(tmp_path):
    assert study(write_results(tmp_path)) is None
    assert collect(Results(tmp_path)).sweep is None


def test_the_summary_tells_the_best_and_what_was_spared(asha):
    best = asha.sweep.study.best
    results = said(asha, "result")
    assert f"Best of 12 trials: trial {best.number} with a validation accuracy of" in results
    assert f"optimizer.lr = {best.values['optimizer.lr']:.4g}, optimizer.momentum = " in results
    left = sum(9 - trial.epochs for trial in asha.sweep.study.of("pruned"))
    assert f"asha stopped 9 trials early and saved {left} epochs" in results
    assert "n = 1" in asha.sweep.sheets[0].notes[0]
    assert "optimistic" in said(asha, "caveat")


def test_an_interval_of_an_accuracy_is_wilsons(asha):
    from scipy.stats import binomtest

    best = asha.sweep.study.best
    images = best.figures.plan["dataset"]["val_samples"]
    hits = round(best.goals["accuracy"] * images)
    wilson = binomtest(hits, images).proportion_ci(method="wilson")
    assert accuracy_interval(best) == pytest.approx((wilson.low, wilson.high), abs=2e-3)


@pytest.mark.parametrize(("accuracy", "named"), [(0.915, True), (0.85, False)])
def test_what_is_not_shown_to_be_worse_is_a_comparison_of_two(accuracy, named):
    """0.915 lies below Wilson's interval of 0.95 of 360 images, from 0.922, and yet may be as good:
    it has an interval as well."""
    best, other = (
        SimpleNamespace(number=n, goals={"accuracy": a}, figures=SimpleNamespace(val_samples=360))
        for n, a in enumerate((0.95, accuracy))
    )
    assert accuracy_interval(best)[0] > accuracy
    told = list(_alike(SimpleNamespace(goal="accuracy", ranked=[best, other]), best))
    assert ["trial 1" in each for each in told] == [True] * named


def test_a_single_trial_is_counted_in_the_singular(tmp_path):
    said = collect(write_sweep(tmp_path, 1, scheduler="none")).summary
    best, cost, *_ = (each.text for each in said)
    assert best.startswith("Best of 1 trial: trial 0 with ")
    assert cost.endswith(" over 1 trial (1 finished).")


def test_of_more_trials_more_are_not_shown_to_be_worse_than_the_best():
    """0.89 lies 3.0 standard errors below 0.95 of 360 images: enough for one comparison (2.0), and
    not for any two of ten trials (Bonferroni: 45 comparisons, 3.3); 9 of them would be 2.8."""
    best, other, *rest = (
        SimpleNamespace(number=n, goals={"accuracy": a}, figures=SimpleNamespace(val_samples=360))
        for n, a in enumerate((0.95, 0.89, *(0.1,) * 8))
    )

    def said_of(*ranked):
        return list(_alike(SimpleNamespace(goal="accuracy", ranked=ranked), best))

    assert said_of(best, other) == []
    [found] = said_of(best, other, *rest)
    assert found == "Not significantly worse, given the size of the validation set: trial 1."


def test_epochs_to_the_target_stand_beside_a_time_to_accuracy(tmp_path):
    results = write_sweep(tmp_path, 6, scheduler="none", goals=("time_to_accuracy",))
    report = collect(results, against=str(tmp_path))
    best = report.sweep.study.best
    epochs = next(n for n, _, accuracy in best.curve if accuracy >= 0.9) + 1
    table = report.sweep.sheets[0]
    cell = table.cells[0][table.header.index("Time to accuracy")]
    assert cell.endswith(f" s, {epochs} epochs")
    assert table.notes[0].count("resolution of an epoch") == 1
    assert f" s, {epochs} epochs of 9: optimizer.lr" in said(report, "result")
    lines = {line.quantity: line for line in report.comparison.lines}
    assert lines["epochs_to_accuracy"].ours.value == epochs
    assert lines["epochs_to_accuracy"].ours_name == lines["time_to_accuracy_s"].ours_name


def test_times_of_a_front_are_of_one_run_each(asha, front, tmp_path):
    assert "Each throughput on" in said(front, "caveat")
    assert "n = 1" not in said(asha, "caveat")
    goals = ("accuracy", "time_to_accuracy")
    timed = collect(write_sweep(tmp_path, 4, scheduler="none", goals=goals))
    assert "Each time to accuracy on the Pareto front was measured in one run (n = 1)" in said(
        timed, "caveat"
    )


def test_tables_and_raw_values(asha):
    folder = asha.folder
    rows = list(csv.DictReader((folder / "rows.csv").read_text("utf-8").splitlines()))
    assert {*SPACE} <= {*rows[0]}
    assert float(rows[0]["optimizer.lr"]) == asha.rows[0].runs[0].plan["label"]["optimizer.lr"]
    data = json.loads((folder / "rows.json").read_text("utf-8"))["sweep"]
    assert [trial["trial"] for trial in data["trials"]] == list(range(12))
    assert {trial["status"] for trial in data["trials"]} == {"finished", "pruned"}
    assert data["best"] == asha.sweep.study.best.number
    spent = sum(trial["worker_seconds"] for trial in data["trials"])
    assert data["worker_seconds"] == pytest.approx(spent)
    best = (folder / "tables/best-trials.tex").read_text("utf-8")
    assert r"\toprule" in best
    assert r"zero\_stage" in best
    assert f"| trial {data['best']} | 1 |" in (folder / "rows.md").read_text("utf-8")


def test_provenance_names_what_was_searched(asha):
    data = json.loads((asha.folder / "provenance.json").read_text("utf-8"))
    assert data["search"]["file"] == "search.json"
    assert len(data["search"]["sha256"]) == 64
    assert [run["name"] for run in data["runs"]][:2] == ["trial 0", "trial 1"]


def test_vega_takes_every_plot(asha, front):
    names = {plot.name for plot in asha.plots}
    assert names == {
        "parallel",
        "learning-curves",
        "importance",
    }
    assert "pareto-accuracy-throughput" in {plot.name for plot in front.plots}
    for plot in (*asha.plots, *front.plots):
        vl_convert.vegalite_to_vega(plot.spec(600))


def test_parallel_coordinates_hold_every_trial_and_axis(asha):
    plot = next(plot for plot in asha.plots if plot.name == "parallel")
    lines = [trace for trace in plot.traces if trace["kind"] == "trial"]
    assert len(lines) == 12
    assert all(len(line["x"]) == len(SPACE) + 1 for line in lines)
    assert sum(line["faint"] < 1 for line in lines) == 9
    best = next(line for line in lines if line["color"] == BEST)
    assert best["y"][-1] == 1.0
    stages = [line["y"][-2] for line in lines]
    assert sum(stage < 0 for stage in stages) == 12 - sum(
        trial.values["strategy"] == {"name": "deepspeed"} for trial in asha.sweep.study.trials
    )


def test_parallel_coordinates_have_whole_names_where_there_is_room(tmp_path):
    names = [f"deepspeed(zero_stage={stage}, bucket_mb=50)" for stage in (1, 2)]
    blocks = [{"name": "deepspeed", "zero_stage": stage, "bucket_mb": 50} for stage in (1, 2)]
    space = {"optimizer.lr": SPACE["optimizer.lr"], "strategy": {"choice": blocks}}
    plot = parallel(study(write_sweep(tmp_path, space=space)))
    svg = vl_convert.vegalite_to_svg(plot.spec(1400))
    assert all(f">{name}<" in svg for name in names)


def test_two_trials_that_have_begun_are_enough_for_parallel_coordinates(tmp_path):
    begun = study(write_sweep(tmp_path, 3, scheduler="none", missing=[2]))
    assert parallel(begun).description.startswith("2 trials ")
    assert parallel(replace(begun, trials=begun.trials[1:])) is None


def test_values_that_are_written_alike_have_one_place_on_an_axis():
    places, ticks = _names({0: 0.5, 1: 0.12341, 2: 0.12342})
    assert places == {0: 1.0, 1: 0.0, 2: 0.0}
    assert ticks == [(0.0, "0.1234"), (1.0, "0.5")]


def test_numbers_are_no_booleans_and_no_words():
    assert [is_number(each) for each in (2, 0.5, True, "2", None)] == [True, True, *[False] * 3]


@pytest.mark.parametrize("goal", ["accuracy", "time_to_accuracy"])
def test_ticks_of_a_goal_stand_at_its_values_and_the_best_is_on_top(tmp_path, goal):
    drawn = study(write_sweep(tmp_path, 6, scheduler="none", goals=(goal,)))
    axis = goal_axis(drawn)
    assert axis.places[drawn.best.number] == max(axis.places.values()) == 1.0
    named = {name: place for place, name in axis.ticks}
    write = drawn.told(goal).write
    best, worst = (write(each.goals[goal]) for each in (drawn.ranked[0], drawn.ranked[-1]))
    assert named[best] > named[worst]


def test_crosses_stand_where_trials_were_stopped(asha):
    plot = next(plot for plot in asha.plots if plot.name == "learning-curves")
    crosses = [trace for trace in plot.traces if trace["kind"] == "stopped"]
    pruned = asha.sweep.study.of("pruned")
    assert [cross["x"] for cross in crosses] == [[trial.epochs] for trial in pruned]
    assert "by asha after" in crosses[0]["tip"]


def test_no_line_has_markers_if_one_has_too_many_epochs(asha):
    drawn = asha.sweep.study
    most = sweep_plots.MOST_MARKERS
    for epochs, layers in ((most, 4), (most + 1, 3)):
        longest = replace(drawn.best, curve=tuple((n, 1.0 + n, 0.5) for n in range(epochs)))
        plot = sweep_plots.curves(replace(drawn, trials=(*drawn.trials, longest)))
        assert len(plot.layers) == layers


@pytest.mark.thorough
def test_importance_finds_what_the_figures_hang_on(tmp_path):
    whole = study(write_sweep(tmp_path, trials=40, scheduler="none"))
    found = importances(whole)
    assert found.keys[0].key == "optimizer.lr"
    assert found.keys[0].low > max(each.high for each in found.keys[1:])
    assert found.left_out == ("strategy.zero_stage",)
    assert importances(whole) == found


def test_importance_is_of_a_key_alone(tmp_path):
    space = {key: SPACE[key] for key in ("optimizer.lr", "optimizer.momentum")}
    drawn = study(write_sweep(tmp_path, trials=60, scheduler="none", space=space))

    def together(values):
        return float((values["optimizer.lr"] > 0.03) == (values["optimizer.momentum"] > 0.72))

    told = [replace(each, goals={"accuracy": together(each.values)}) for each in drawn.trials]
    found = importances(replace(drawn, trials=tuple(told)))
    assert sum(each.middle for each in found.keys) < 0.6
    assert "a key alone explains" in importance_plot(found).note


@pytest.mark.parametrize(
    ("higher_is_better", "values"), [(True, [0.5, 0.4, 0.7]), (False, [0.2, 0.3, 0.6])]
)
def test_importance_counts_the_epochs_that_every_trial_finished(tmp_path, higher_is_better, values):
    """Two trials of four epochs, one that ASHA stopped after two, one that failed, one without a
    validation."""
    made = study(write_sweep(tmp_path, trials=5, fails={3: MEMORY}))
    curves = ([0.2, 0.5, 0.9, 0.1], [0.4, 0.3, 0.8, 0.2], [0.7, 0.6], [0.1], [])
    metric = made.task.main.model_copy(update={"higher_is_better": higher_is_better})
    task = made.task.model_copy(update={"metrics": (metric,)}).model_dump(mode="json")
    told = [
        replace(
            trial,
            epochs=len(curve),
            curve=tuple((epoch, 1.0 + epoch, value) for epoch, value in enumerate(curve)),
            figures=replace(trial.figures, plan=trial.figures.plan | {"task": task}),
        )
        for trial, curve in zip(made.trials, curves, strict=True)
    ]
    made = replace(made, trials=tuple(told))
    sample, judged = _sample(made)
    assert [value for _, value in sample] == values
    assert judged == "accuracy within 2 epochs"
    timed = replace(made, search=made.search | {"goals": ["throughput"]})
    wanted = [(each, each.figures.throughput) for each in timed.ranked]
    assert _sample(timed) == (wanted, "throughput")


def test_importance_is_not_told_of_few_trials(tmp_path):
    few = study(write_sweep(tmp_path, trials=LEAST - 1, scheduler="none"))
    assert not importances(few).keys
    assert "not reported" in importances(few).message


def test_the_front_is_told_and_drawn(front):
    numbers = [trial.number for trial in front.sweep.study.front]
    plot = next(plot for plot in front.plots if plot.name.startswith("pareto"))
    line = next(trace for trace in plot.traces if trace["kind"] == "front")
    assert len(line["x"]) == len(numbers)
    assert line["y"] == sorted(line["y"], reverse=True)
    assert "validation accuracy and throughput" in said(front, "result")


def test_the_best_of_each_goal_is_of_all_trials_even_without_a_front(tmp_path):
    goals = ("time_to_accuracy", "throughput")
    whole = collect(write_sweep(tmp_path, trials=6, scheduler="none", goals=goals)).sweep.study
    fastest = max(whole.trials, key=lambda trial: trial.goals["throughput"])
    missed = [
        replace(trial, goals=trial.goals | {"time_to_accuracy": None}) for trial in whole.trials
    ]
    one = [m if trial is fastest else trial for trial, m in zip(whole.trials, missed, strict=True)]
    for trials in (one, missed):
        told = summary_of(replace(whole, trials=tuple(trials)), "result")
        [speed] = [each for each in told if each.startswith("Best throughput: ")]
        assert speed.startswith(f"Best throughput: trial {fastest.number} with ")
        assert any(each.startswith("Pareto front of ") for each in told) == (trials is one)


def test_trials_without_a_result_are_told(front):
    problems = said(front, "problem")
    assert "of memory): trial 3." in problems
    assert "resumed: trial 11." in problems
    page = (front.folder / "report.html").read_text("utf-8")
    assert "&lt;b&gt;2 GiB&lt;/b&gt; too much" in page
    assert "Traceback: boom" in page


def test_the_best_spec_plans_the_same_run(asha, front):
    names = [f"best-{trial.number}.yaml" for trial in front.sweep.study.front]
    assert sorted(file.name for file in front.folder.glob("best*")) == sorted(names)
    looked = [(asha, "best.yaml", asha.sweep.study.best)]
    looked += [(front, f"best-{trial.number}.yaml", trial) for trial in front.sweep.study.front]
    for report, name, trial in looked:
        text = (report.folder / name).read_text("utf-8")
        assert f"trial {trial.number} of the sweep made-up-sweep" in text
        (plan,) = make_plans(parse_document(text, name), gpus=0)
        again, first = plan.model_dump(mode="json"), trial.figures.plan
        assert again["spec"] | {"name": ""} == first["spec"] | {"name": ""}
        assert {k: again[k] for k in ("seed", "workers", "global_batch", "peak_lr")} == {
            k: first[k] for k in ("seed", "workers", "global_batch", "peak_lr")
        }


def test_the_best_spec_is_the_plans_where_the_sweeps_own_is_refused(tmp_path):
    made = study(write_sweep(tmp_path, 2, scheduler="none"))
    changed = replace(made, base=made.base | {"training": {"epochs": -1}})
    assert "epochs: 9\n" in best_spec(changed, made.best)


def test_best_specs_of_an_earlier_report_go(tmp_path):
    results = write_sweep(tmp_path, trials=4, scheduler="none", goals=("accuracy", "throughput"))
    (tmp_path / "best-77.yaml").write_text("# Written by raysuite report: trial 77", "utf-8")
    (tmp_path / "best-own.yaml").write_text("# my own", "utf-8")
    build(results, pictures=False)
    assert not (tmp_path / "best-77.yaml").exists()
    assert (tmp_path / "best-own.yaml").exists()
    for folder in (tmp_path, tmp_path / "page"):
        folder.mkdir(exist_ok=True)
        (folder / "best-78.yaml").write_text("# Written by raysuite report: trial 78", "utf-8")
    build(results, tmp_path / "page", pictures=False)
    assert not (tmp_path / "page/best-78.yaml").exists()
    assert (tmp_path / "best-78.yaml").exists()


def test_against_tells_cost_and_best_of_both(asha):
    lines = {line.quantity: line for line in asha.comparison.lines}
    other = study(Results(asha.folder.parent / "whole"))
    assert side_by_side(asha.sweep.study) == 1
    ours = asha.sweep.study
    for quantity, of in {
        "worker_seconds": lambda sweep: sweep.worker_seconds,
        "epochs_trained": lambda sweep: sum(len(trial.curve) for trial in sweep.trials),
        "trials": lambda sweep: len(sweep.trials),
        "trials_stopped_early": lambda sweep: sum(t.status == "pruned" for t in sweep.trials),
    }.items():
        line, values = lines[quantity], (of(ours), of(other))
        assert (line.ours.value, line.theirs.value) == values
        assert line.ratio == (Ratio(values[0] / values[1], None, None) if values[1] else None)
    assert lines["worker_seconds"].ratio.value < 1
    assert lines["trials_stopped_early"].ours.value > 0
    assert lines["best_accuracy"].theirs.value == other.best.goals["accuracy"]
    best = lines["best_accuracy"].ours
    assert best.low < best.value < best.high
    remarks = " ".join(asha.comparison.remarks)
    assert 'search.scheduler.name "asha", theirs "none"' in remarks


def test_times_of_two_sweeps_stand_beside_their_epochs(asha):
    def with_best(rate, seconds, epochs):
        trial = asha.sweep.study.trials[0]
        figures = replace(trial.figures, epochs_to_accuracy=epochs)
        goals = {"time_to_accuracy": seconds}
        trial = replace(trial, values={"optimizer.lr": rate}, goals=goals, figures=figures)
        search = {**asha.sweep.study.search, "goals": [*goals]}
        return replace(asha.sweep.study, search=search, trials=(trial,))

    found = against_sweep(with_best(0.1, 30.0, 3), with_best(0.2, 60.0, 4), "x")
    lines = {line.quantity: line for line in found.lines}
    for quantity, ours, theirs in (("time_to_accuracy_s", 30, 60), ("epochs_to_accuracy", 3, 4)):
        line = lines[quantity]
        assert (line.ours.value, line.theirs.value) == (ours, theirs)
        assert line.ratio == Ratio(ours / theirs, None, None)
    assert "The sweeps did not try the same values." in found.remarks
    again = against_sweep(with_best(0.1, 30.0, None), with_best(0.1, 60.0, 4), "x")
    assert "epochs_to_accuracy" not in {line.quantity for line in again.lines}
    assert "Both sweeps tried the same values." in again.remarks
    again = against_sweep(with_best(0.1, 30.0, 3), with_best(0.1, 60.0, None), "x")
    assert "epochs_to_accuracy" not in {line.quantity for line in again.lines}


def test_best_accuracies_of_two_sweeps_have_each_its_own_interval(asha):
    from scipy.stats import binomtest

    def with_best(accuracy):
        trial = replace(asha.sweep.study.trials[0], goals={"accuracy": accuracy})
        return replace(asha.sweep.study, trials=(trial,))

    found = against_sweep(with_best(0.9), with_best(0.5), "x")
    [line] = [each for each in found.lines if each.quantity == "best_accuracy"]
    for side, hits in ((line.ours, 324), (line.theirs, 180)):  # of 360
        wilson = binomtest(hits, 360).proportion_ci(method="wilson")
        values = (hits / 360, wilson.low, wilson.high)
        assert (side.value, side.low, side.high) == pytest.approx(values, abs=1e-6)


def test_only_goals_of_both_sweeps_and_results_of_both_are_compared(asha, front):
    ours, theirs = front.sweep.study, asha.sweep.study

    def compared(one, other):
        return [each.quantity for each in against_sweep(one, other, "x").lines][4:]

    assert compared(ours, ours) == ["best_accuracy", "throughput"]
    assert compared(ours, theirs) == compared(theirs, ours) == ["best_accuracy"]
    nothing = replace(ours, trials=tuple(t for t in ours.trials if not t.counts))
    assert compared(ours, nothing) == compared(nothing, ours) == []


def test_sweeps_in_other_environments_are_not_called_comparable(asha):
    ours = asha.sweep.study
    trial = ours.trials[0]
    environment = trial.figures.started.environment | {"fingerprint": "cafe"}
    started = trial.figures.started.model_copy(update={"environment": environment})
    elsewhere = replace(trial, figures=replace(trial.figures, started=started))
    other = replace(ours, trials=(elsewhere, *ours.trials[1:]))
    for theirs, apart in ((ours, False), (other, True)):
        remarks = " ".join(against_sweep(ours, theirs, "x").remarks)
        assert ("different environments" in remarks) == apart
        assert "differ in" not in remarks
    [told] = [each for each in summary_of(other, "caveat") if "2 different environments" in each]
    assert "may not be comparable" in told


def summary_of(drawn, kind):
    nothing = Importances(drawn.goal, 0, "")
    return [each.text for each in summarize_sweep(drawn, nothing) if each.kind == kind]


def test_trials_run_side_by_side_where_their_times_overlap():
    def most(*spans):
        return side_by_side(SimpleNamespace(spans=spans))

    assert (most(), most((0, 1), (1, 2)), most((0, 2), (1, 3))) == (0, 1, 2)
    assert most((0, 10), (1, 3), (3, 5), (4, 6), (9, 11)) == 3


def test_speeds_under_the_load_of_other_trials_are_a_caveat(front, asha):
    spans = ((0.0, 2.0), (1.0, 3.0))
    for drawn, told in ((front.sweep.study, True), (asha.sweep.study, False)):
        said = summary_of(replace(drawn, spans=spans), "caveat")
        assert any(each.startswith("Up to 2 trials ran at the same time") for each in said) == told
        assert not any("at the same time" in each for each in summary_of(drawn, "caveat"))


def test_speeds_of_trials_beside_other_programs_are_a_caveat(front, asha):
    for drawn, told in ((front.sweep.study, True), (asha.sweep.study, False)):
        first, *others = drawn.trials
        slowed = replace(first, figures=replace(first.figures, other_cores=1.0))  # of 2
        busy = replace(drawn, trials=(slowed, *others))
        said = [each for each in summary_of(busy, "caveat") if each.startswith("Other programs")]
        assert [each.endswith(": trial 0 (50%).") for each in said] == [True] * told
        beside = replace(busy, spans=((0.0, 2.0), (1.0, 3.0)))  # the other trial had these cores
        assert not any(each.startswith("Other") for each in summary_of(beside, "caveat"))
        both = cores_of(drawn) + 0.8
        slowed = replace(first, figures=replace(first.figures, other_cores=both))
        beside = replace(beside, trials=(slowed, *others))
        said = [each for each in summary_of(beside, "caveat") if each.startswith("Other programs")]
        assert [each.endswith(": trial 0 (40%).") for each in said] == [True] * told


def test_trials_that_were_not_chosen_yet_are_counted(asha):
    drawn = asha.sweep.study
    said = summary_of(replace(drawn, trials=drawn.trials[:5]), "problem")
    assert said == ["5 of 12 trials have been chosen so far."]
    assert summary_of(drawn, "problem") == []


def test_a_cost_counts_the_epochs_that_stopped_trials_did_not_train(asha):
    drawn = asha.sweep.study
    seconds = [replace(each, worker_seconds=600.0) for each in drawn.trials]
    first = next(each for each in seconds if each.status == "pruned")
    rest = [each for each in seconds if each.status != "pruned"]
    before = replace(first, epochs=0, curve=())  # which was stopped before its first validation
    [cost] = list(_cost(replace(drawn, trials=(before, *rest))))
    assert cost.startswith("Cost: 2,400 worker-seconds over 4 trials (3 finished, 1 ")
    told = list(_cost(replace(drawn, trials=(before, replace(first, epochs=4), *rest))))
    assert told[0].startswith("Cost: 3,000 worker-seconds over 5 trials")
    assert "stopped 1 trial early and saved 5 epochs" in told[1]
    assert worker_time(3599) == "3,599 worker-seconds"
    assert worker_time(3600) == "1.00 worker-hours"


def test_importance_is_not_told_where_nothing_varied(asha):
    drawn = asha.sweep.study
    equal = [replace(each, curve=((0, 1.0, 0.5),), epochs=1) for each in drawn.trials]
    assert importances(replace(drawn, trials=tuple(equal))).message.endswith("equal results.")
    same = {**drawn.trials[0].values, "strategy": "ddp"}
    same.pop("strategy.zero_stage", None)
    rates = [replace(each, values=same | {"optimizer.lr": 0.1 + n}) for n, each in enumerate(equal)]
    found = importances(replace(drawn, trials=tuple(rates)))
    assert found.message.endswith("fewer than two keys varied.")
    assert (found.trials, found.left_out) == (12, ("strategy.zero_stage",))


def test_against_wants_a_sweep(asha, tmp_path):
    write_results(tmp_path)
    with pytest.raises(UserError, match="of a sweep"):
        collect(Results(asha.folder), against=str(tmp_path))


def test_its_figures_equal_the_oracle(asha):
    assert differences(Results(asha.folder)) == []


EVIL = "</script><img src=x onerror=alert(1)>"


def test_values_are_escaped_and_a_constant_key_is_no_cause(tmp_path):
    own = {"name": "tests.tiny_model:Tiny", "options": {"note": EVIL}}
    space = {
        "training.clip_norm": {"choice": [1.0]},
        "model": {"choice": ["resnet20", own]},
        "optimizer.lr": {"grid": [0.1, 0.2]},
    }
    report = build(write_sweep(tmp_path, 5, scheduler="none", space=space), pictures=False)
    assert EVIL not in (tmp_path / "report.html").read_text("utf-8")
    assert "training.clip_norm" not in {each.key for each in report.sweep.importances.keys}
    assert [each for each in report.plots if each.name == "parallel"]


def test_three_goals_are_three_fronts(tmp_path):
    goals = ("time_to_accuracy", "accuracy", "throughput")
    report = collect(write_sweep(tmp_path, trials=6, scheduler="none", goals=goals))
    fronts = [plot.name for plot in report.plots if plot.name.startswith("pareto")]
    assert fronts == [
        "pareto-time-to-accuracy-accuracy",
        "pareto-time-to-accuracy-throughput",
        "pareto-accuracy-throughput",
    ]
    assert "validation accuracy and throughput" in said(report, "result")
    drawn = {plot.name: plot for plot in report.plots if plot.name.startswith("pareto")}
    for name, better, stairs in (
        ("pareto-time-to-accuracy-accuracy", "left and further up", "step-after"),
        ("pareto-accuracy-throughput", "right and further up", "step-before"),
    ):
        plot = drawn[name]
        assert "front of these two: for a trial on it, no other trial is better" in plot.note
        assert f"Better trials are further {better}." in plot.note
        assert plot.layers[0]["mark"]["interpolate"] == stairs
        assert not plot.wide
        both = [trial for trial in report.sweep.study.trials if all(trial.goals.values())]
        line = next(trace for trace in plot.traces if trace["kind"] == "front")
        assert line["x"] == sorted(line["x"])
        points = [trace for trace in plot.traces if trace["kind"] == "mean"]
        assert sum(len(trace["x"]) for trace in points) >= len(both)


def test_an_axis_of_throughputs_has_its_unit_in_the_title_alone(front):
    drawn = front.sweep.study
    axis = goal_axis(replace(drawn, search=drawn.search | {"goals": ["throughput"]}))
    assert axis.title == "images/s"
    speeds = [trial.figures.throughput for trial in drawn.trials if trial.counts]
    assert [name for _, name in axis.ticks][::2] == [
        f"{v:,.0f}" for v in (min(speeds), max(speeds))
    ]
    assert 3 not in axis.places  # which failed


def test_an_axis_is_logarithmic_only_for_positive_values():
    write = "{:.3g}".format
    places, ticks = sweep_plots._numbers({0: 0.01, 1: 1.0, 2: 0.1}, write, log=True)
    assert places == pytest.approx({0: 0.0, 1: 1.0, 2: 0.5})
    assert ticks == [(0.0, "0.01"), (0.5, "0.1"), (1.0, "1")]
    places, ticks = sweep_plots._numbers({0: 0.0, 1: 1.0, 2: 0.1}, write, log=True)
    assert places == pytest.approx({0: 0.0, 1: 1.0, 2: 0.1})
    assert sweep_plots._numbers({4: 2.0, 5: 2.0}, write) == ({4: 0.5, 5: 0.5}, [(0.5, "2")])
    assert sweep_plots._numbers({}, write) == ({}, [])


def test_costs_are_by_state_with_their_share(asha):
    states = ("finished", "failed", "finished")
    trials = [
        replace(trial, worker_seconds=900.0 + 1800 * n, status=status)
        for n, (trial, status) in enumerate(zip(asha.sweep.study.trials, states, strict=False))
    ]
    sheet = costs_sheet(replace(asha.sweep.study, trials=tuple(trials)))
    hours = {
        "finished": ("2", "5,400.0", "1.50", "66.7 %"),
        "failed": ("1", "2,700.0", "0.75", "33.3 %"),
    }
    cells = {line[0]: (line[1], *line[3:]) for line in sheet.cells}
    assert cells == hours | {"all": ("3", "8,100.0", "2.25", "100.0 %")}
    few = costs_sheet(replace(asha.sweep.study, trials=(trials[0],)))
    assert few.cells[-1][4:] == ("0.2500", "100.0 %")


def test_of_many_trials_the_ten_best_are_in_the_table(asha):
    sheet = best_sheet(asha.sweep.study)
    assert sheet.title == "Best trials: the first 10 of 12"
    assert [cells[0] for cells in sheet.cells] == [
        f"trial {trial.number}" for trial in asha.sweep.study.ranked[:10]
    ]
    ten = replace(asha.sweep.study, trials=tuple(asha.sweep.study.ranked[:10]))
    assert best_sheet(ten).title == "Best trials"


def test_a_sweep_that_has_just_begun(tmp_path):
    report = build(write_sweep(tmp_path, trials=1, missing=[0]), pictures=False)
    assert report.plots == []
    assert "None of 1 trial" in said(report, "result")
    assert not list(tmp_path.glob("best*"))


def test_a_sweep_without_a_trial(tmp_path):
    results = write_sweep(tmp_path, trials=1, missing=[0])
    results.write_plans([])
    report = build(results, pictures=False)
    assert [each.kind for each in report.summary] == ["problem"]
