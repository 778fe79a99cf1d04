"""Everything that reads figures has the task's units and metrics."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from mlflow import MlflowClient
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cli.progress import RunState
from raysuite.cli.progress import _facts as facts
from raysuite.errors import UserError
from raysuite.orchestrate.registration import register_run
from raysuite.orchestrate.registration import trained as of_run
from raysuite.orchestrate.stopping import requested_end
from raysuite.orchestrate.sweep.schedulers import JournaledScheduler
from raysuite.perf.calibration import calibrate, observed
from raysuite.perf.prediction import predict
from raysuite.plan import RunPlan
from raysuite.plan.trials import trial_plan, write_sweep
from raysuite.records import EpochFinished, Journal, Results, results_figures
from raysuite.records.derive import run_figures
from raysuite.records.live import LivePosition
from raysuite.records.rows import make_rows
from raysuite.report.build import collect, contents
from raysuite.report.plots import make_plots
from raysuite.report.raw_data import row_data, run_data
from raysuite.report.sweep.study import study
from raysuite.report.tables import costs_sheet, markdown_sheet, rows_latex, rows_sheet
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions
from raysuite.track.entries import run_points
from raysuite.track.upload import sweep_points, trials_view
from raysuite.train.evaluation import evaluate_task
from raysuite.train.served import example
from raysuite.train.stop_together import Prune
from tests.task_sets import BATCH, VAL, numbers, spec_of
from tests.unit.tasks.conftest import plan_of, run

CODE = re.compile(r"<(script|style).*?</\1>", re.DOTALL)
WORDS = re.compile(r"\w*\W?(?:[iI]mage|ccurac)\w*")
OF_CONTAINERS = ('"image', "docker\nimage")


def of_images(*texts: str) -> list[str]:
    """Words of the classification of images in texts and pages."""
    found = (word for text in texts for word in WORDS.findall(CODE.sub("", text)))
    return [word for word in found if word not in OF_CONTAINERS]


def test_figures_of_a_language_model_are_of_tokens_and_perplexity(tmp_path: Path) -> None:
    training = {"epochs": 3, "global_batch": BATCH, "target": 1000.0}
    plan = plan_of("language_model", tmp_path, training=training)
    records = run(plan)
    figures = run_figures(plan.model_dump(mode="json"), records)
    [row] = rows = make_rows([figures])
    tokens = len((tmp_path / "train.txt").read_bytes()) - 1
    assert [epoch.images for epoch in figures.epochs] == 3 * [tokens]
    assert figures.best["perplexity"] == min(e.validation["perplexity"] for e in figures.epochs)
    assert figures.epochs_to_accuracy == 1
    assert row.final is not None
    assert row.final.mean == figures.epochs[-1].validation["perplexity"]
    data = row_data(row)
    assert data["throughput_tokens_per_s"]["mean"] == figures.throughput
    assert data["final_perplexity"]["mean"] == row.final.mean
    assert data["time_to_target_s"]["mean"] == figures.time_to_accuracy
    costs = costs_sheet(rows)
    assert costs is not None
    points = {point.key: point.value for point in run_points(figures)}
    assert points["run/tokens_per_second"] == figures.throughput
    assert points["run/final_perplexity"] == row.final.mean
    assert points["epoch/val_next_token"] == figures.final["next_token"]
    plots = {plot.name: plot for plot in make_plots(rows)}
    assert {"perplexity", "throughput", "time-to-target", "loss"} <= plots.keys()
    written = [
        markdown_sheet(rows_sheet(rows)),
        markdown_sheet(costs),
        rows_latex(rows),
        json.dumps([data, run_data(figures)]),
        *points,
        *map(repr, plots.values()),
    ]
    assert of_images(*written) == []
    assert "Perplexity" in written[0]
    assert "Tokens/s" in written[0]


RATES = (0.001, 0.1, 0.01)
SPACE = {"optimizer.lr": {"grid": list(RATES)}}


def swept(case: str, folder: Path, **search: object) -> Results:
    """The results folder of a sweep over learning rates whose trials were trained here."""
    training = {"epochs": 3, "global_batch": BATCH, "target": 1.0}
    data = spec_of(case, folder / "text", training=training)
    asked = {"space": SPACE, "searcher": "grid", **search}
    document = Document({**data, "search": asked}, "sweep.yaml")
    results = Results(folder / "sweep")
    write_sweep(document, results)
    for number, rate in enumerate(RATES):
        plan = trial_plan(document, {"optimizer.lr": rate}, number, gpus=0)
        results.add_plan(plan.model_dump(mode="json"))
        journal = Journal(results.journal_file(plan.run_id))
        for record in run(plan):
            journal.write(record)
    return results


@pytest.mark.parametrize(
    ("case", "metric"), [("language_model", "perplexity"), ("regression", "mae"), ("own", "copied")]
)
def test_a_sweep_goes_by_the_primary_metric(case: str, metric: str, tmp_path: Path) -> None:
    results = swept(case, tmp_path)
    found = study(results)
    assert found is not None
    assert found.goals == ("metric",)
    reached = [trial.figures.best[metric] for trial in found.trials]
    by_merit = sorted(reached, reverse=case == "own")
    assert [trial.goals["metric"] for trial in found.ranked] == by_merit
    assert by_merit[0] != by_merit[-1]
    search = results.search()
    assert search is not None
    points = [point for point in sweep_points(search, found.trials) if point.key.startswith("best")]
    assert {point.key for point in points} == {f"best/{metric}"}
    assert points[-1].value == by_merit[0]
    view = json.loads(trials_view(search, found.task, "feed"))
    assert view["orderByAsc"] == (case != "own")
    report = collect(results, against=str(results.folder))
    files = contents(report)
    assert of_images(*files.values(), *map(repr, report.plots)) == []
    assert f"val_{metric}" in files["rows.json"]
    assert report.comparison is not None
    assert f"best_{metric}" in {line.quantity for line in report.comparison.lines}


def test_a_time_to_a_target_is_minimised_for_every_task(tmp_path: Path) -> None:
    found = study(swept("regression", tmp_path, goals=["time_to_target", "throughput", "metric"]))
    assert found is not None
    timed = [trial.goals["time_to_target"] for trial in found.trials]
    assert found.best is not None
    assert found.best.goals["time_to_target"] == min(filter(None, timed))


def test_a_scheduler_stops_the_trials_with_the_largest_error(tmp_path: Path) -> None:
    asha = {"name": "asha", "grace_epochs": 1, "reduction_factor": 3}
    results = swept("regression", tmp_path, scheduler=asha)
    search = results.search()
    assert search is not None
    scheduler = JournaledScheduler(SearchOptions.model_validate(search["search"]), results, 3)
    plans = [RunPlan.model_validate(plan) for plan in results.plans()]
    firsts = {}
    for plan in plans:
        scheduler.add(plan)
        records = results.records(plan.run_id)
        firsts[plan.run_id] = next(each for each in records if isinstance(each, EpochFinished))
        results.journal_file(plan.run_id).unlink()  # it has not ended
    best, *others = sorted(firsts.values(), key=lambda each: each.validation["mae"])
    for epoch in (best, *others):
        scheduler.on_epoch(epoch)
    asked = {each.run_id: requested_end(results.folder, each.run_id) for each in firsts.values()}
    assert asked[best.run_id] is None
    for epoch in others:
        prune = asked[epoch.run_id]
        assert isinstance(prune, Prune)
        assert prune.value == epoch.validation["mae"]
        assert "mean absolute error" in prune.message


def trained(case: str, folder: Path, batch: int = BATCH) -> tuple[Results, dict[str, float]]:
    """The results folder of a run that was trained here, and the metrics of its last validation."""
    folder.mkdir(exist_ok=True)
    plan = plan_of(case, folder / "text", training={"epochs": 2, "global_batch": batch})
    results = Results(folder / "results")
    results.write_plans([plan.model_dump(mode="json")])
    journal = Journal(results.journal_file(plan.run_id))
    for record in run(plan, model_file=results.journal_file(plan.run_id).with_name("model.pt")):
        journal.write(record)
        if isinstance(record, EpochFinished):
            metrics = record.validation
    return results, metrics


@pytest.mark.parametrize("case", ["language_model", "regression", "own"])
def test_evaluate_computes_the_metrics_of_the_task(case: str, tmp_path: Path) -> None:
    results, metrics = trained(case, tmp_path)
    asked = ["evaluate", str(results.folder)]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert {name: figures[name] for name in metrics} == pytest.approx(metrics, rel=1e-6)
    file = tmp_path / "predictions.csv"
    done = CliRunner().invoke(app, [*asked, "--out", str(file)])
    assert of_images(done.output) == []
    if case != "regression":  # more numbers for a sample than a line has room for
        assert done.exit_code == 2
        assert not file.exists()
        plan, weights = of_run(results, results.plans()[0]["run_id"])
        done_samples: list[int] = []
        with pytest.raises(UserError, match="--out"):
            evaluate_task(plan, weights, "val", torch.device("cpu"), done_samples.append, keep=True)
        assert done_samples == []  # before the work
        return
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["place"] for row in rows] == [
        f"tests.task_sets:numbers(split='val')[{sample}]" for sample in range(VAL)
    ]
    errors = [
        abs(float(row[f"output_{n}"]) - float(row[f"target_{n}"])) for row in rows for n in (0, 1)
    ]
    assert sum(errors) / len(errors) == pytest.approx(metrics["mae"], rel=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["language_model", "regression"])
def test_a_task_is_registered_with_its_primary_metric(case: str, tmp_path: Path) -> None:
    results, metrics = trained(case, tmp_path)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    [plan] = results.plans()
    found = register_run(results, plan["run_id"], "mine", address)
    assert found.ok, found.error
    client = MlflowClient(address)
    version = client.get_model_version("mine", found.version)
    primary = "perplexity" if case == "language_model" else "mae"
    assert version.tags[f"raysuite.{primary}"] == f"{metrics[primary]:.4f}"
    about = client.get_registered_model("mine").description
    assert of_images(about, *version.tags) == []


def test_a_network_of_several_tensors_is_not_registered(tmp_path: Path) -> None:
    results, _ = trained("own", tmp_path)
    [plan] = results.plans()
    with pytest.raises(UserError, match="the network's inputs are a dict"):
        register_run(results, plan["run_id"], "mine", f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.mark.parametrize(("case", "unit"), [("language_model", "tokens"), ("own-cubes", "samples")])
def test_models_of_costs_count_what_the_task_counts(
    case: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [trained(case, tmp_path / str(batch), batch)[0] for batch in (12, 12, 6, 9)]
    runs = [run for results in made for run in results_figures(results)]
    costs, run_, results = calibrate(runs, ["results"], 1), runs[0], made[0]
    [observed_] = observed([run_])
    steady = sum(each.steady_seconds for each in run_.epochs)
    share = sum(each.steady_images for each in run_.epochs) / sum(e.images for e in run_.epochs)
    assert observed_.seconds == pytest.approx(steady / share / len(run_.epochs))
    [predicted] = predict(results.plans(), costs, "c.yaml")
    assert predicted.throughput is not None
    seconds = predicted.epoch_seconds
    assert seconds is not None
    assert run_.epoch_units == pytest.approx(seconds.value * predicted.throughput.value, rel=0.02)
    file = tmp_path / "spec.yaml"
    spec = {
        key: value
        for key, value in spec_of(case, tmp_path / "12" / "text").items()
        if key != "name"
    }
    file.write_text(yaml.safe_dump({"name": "simulated", **spec}))
    costs.write(tmp_path / "c.yaml")
    asked = ["simulate", str(file), "--calibration", "c.yaml", "--network", "hdr-fat-tree"]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    [line] = json.loads(done.stdout)
    each = BATCH * (16 if unit == "tokens" else 1)
    assert line[f"{unit}_per_s"] == pytest.approx(each / line["step_s"])
    assert of_images(done.stdout, CliRunner().invoke(app, asked).stdout) == []


def test_no_figure_depends_on_the_unknown_number_of_tokens_in_a_sample(tmp_path: Path) -> None:
    results, _ = trained("own", tmp_path)
    [figures] = results_figures(results)
    assert figures.throughput is not None
    assert figures.costs is not None
    assert figures.costs.counted is not None
    assert figures.costs.counted.forward_flops
    assert figures.costs.flops is None
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(spec_of("own", tmp_path)))
    done = CliRunner().invoke(app, ["simulate", str(file), "--per-second", "1000"])
    assert done.exit_code == 2
    state = RunState(plan_of("own", tmp_path))
    for record in results.records(figures.run_id)[:3]:
        state.take(record)
    last = figures.epochs[0]
    samples = state.plan.dataset.train_samples
    assert state.rate == samples / (last.seconds + last.validation_seconds)
    state.live = LivePosition(
        time=0, epoch=1, step=1, steps=4, images=12, images_per_second=1.0, loss=None
    )
    assert f"{last.images / last.seconds:,.0f} tokens/s" in facts(state)


def test_an_example_is_the_first_inputs_of_the_validation(tmp_path: Path) -> None:
    samples = numbers("val")
    expected = torch.stack([samples[place][0] for place in (0, 1)])
    assert torch.equal(torch.from_numpy(example(plan_of("regression", tmp_path))), expected)
