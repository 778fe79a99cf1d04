"""A population's report: who took whose weights, and nothing that its values do not say."""

from __future__ import annotations

import pytest

from raysuite.plan import make_plans
from raysuite.records.sweep import trials
from raysuite.report import build
from raysuite.report.sweep.importance import _sample, importances
from raysuite.report.sweep.study import study
from raysuite.report.sweep.sweep_report import best_spec
from raysuite.spec import parse_document
from tests.fake_population import write_population
from tests.fake_sweeps import write_sweep
from tests.oracle import differences


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_population(tmp_path_factory.mktemp("population"))


@pytest.fixture(scope="module")
def report(results):
    return build(results, pictures=True)


def taken(results):
    return [(turn, trial) for trial in trials(results) for turn in trial.taken]


def test_the_made_up_population_took_weights_twice_from_two(results):
    assert [len([t for t, _ in taken(results) if t.epoch == e]) for e in (2, 5)] == [2, 2]


def test_each_time_stands_in_a_table(report, results):
    (sheet,) = [sheet for sheet in report.sweep.sheets if sheet.name == "taken-weights"]
    assert len(sheet.cells) == len(taken(results)) == 4
    turn, trial = min(taken(results), key=lambda each: (each[0].epoch, each[1].number))
    lr = turn.values["optimizer.lr"]
    assert sheet.cells[0][:2] == ("3", f"trial {trial.number}")
    assert sheet.cells[0][4] == f"trial {turn.source_trial}"
    assert f"lr={lr:.4g}" in sheet.cells[0][6]
    page = (report.folder / "report.html").read_text()
    assert 'id="taken"' in page
    assert (report.folder / "tables" / "taken-weights.csv").is_file()


def test_the_curve_of_who_took_weights_breaks_off_and_goes_on_from_theirs(report, results):
    (plot,) = [plot for plot in report.sweep.plots if plot.name == "learning-curves"]
    assert sum(trace["kind"] == "taken" for trace in plot.traces) == 4
    assert "continued from another trial's weights" in plot.note
    found = {trial.run_id: trial for trial in trials(results)}
    turn, trial = taken(results)[0]
    there = found[turn.source].curve[turn.epoch][2]
    own, others = [
        t for t in plot.traces if t.get("series", "").startswith(f"trial {trial.number}.")
    ][:2]
    assert (own["x"][-1], others["x"][0]) == (turn.epoch + 1, turn.epoch + 1)
    assert (own["y"][-1], others["y"][0]) == (turn.value, there)
    assert (report.folder / "plots" / "learning-curves.png").stat().st_size > 10_000


def test_the_summary_says_that_values_changed(report):
    said = [each.text for each in report.summary]
    assert any("of other trials 4 times." in each for each in said)
    assert any("pbt changed some" in each for each in said)


def test_importance_is_judged_before_anyone_took_weights(results):
    found = importances(study(results))
    assert found.judged == "accuracy within 3 epochs"
    sample, _ = _sample(study(results))
    assert [value for _, value in sample] == [trial.curve[2][2] for trial in trials(results)]
    assert found.trials == 8


def test_the_spec_of_a_trial_that_took_weights_is_said_to_be_another_run(results):
    found = study(results)
    assert [bool(trial.taken) for trial in found.trials].count(True) == 4
    for trial in found.trials:
        text = best_spec(found, trial)
        head = "".join(line for line in text.splitlines() if line.startswith("#"))
        assert ("differs from the trial" in head) == bool(trial.taken)
        (plan,) = make_plans(parse_document(text, "best.yaml"), gpus=0)
        values = (plan.spec.optimizer.lr, plan.spec.optimizer.momentum)
        last = trial.taken[-1].values if trial.taken else trial.values
        assert values == (last["optimizer.lr"], last["optimizer.momentum"])


def test_its_figures_equal_the_oracle(results):
    assert differences(results) == []


def test_other_sweeps_say_nothing_of_it(tmp_path):
    report = build(write_sweep(tmp_path, trials=3), pictures=False)
    assert "taken-weights" not in {sheet.name for sheet in report.sweep.sheets}
    page = (tmp_path / "report.html").read_text()
    assert "weights of others" not in page
    assert 'id="taken"' not in page
