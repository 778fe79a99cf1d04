"""`raysuite run` as a user runs it: two frameworks, two loaders, two workers, all that follows."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.records import EpochFinished, Record, Results
from raysuite.spec import parse_document
from raysuite.track import sync
from raysuite.train.run import execute
from tests.integration.own import Net
from tests.integration.workplace import Command, Workplace
from tests.json_lines import assert_records
from tests.marks import SLOW_MARKS
from tests.require import require

pytestmark = [*SLOW_MARKS, pytest.mark.timeout(900)]

ONE_RUN = """\
name: matrix
model: own:Net
data: digits
optimizer: {name: sgd, lr: 0.05}
training: {epochs: 2, global_batch: 128}
resources: {device: cpu, workers: WORKERS}
"""
MATRIX = (
    ONE_RUN.replace("WORKERS", "2")
    + "matrix: {'strategy, loader': [[ddp, native], [horovod, dali]]}\n"
)
ALONE = ONE_RUN.replace("WORKERS", "1")
STEPS, EPOCHS, RUNS = 12, 2, 2
TABLES = ("experiments", "runs", "params", "tags", "metrics", "latest_metrics")


@pytest.fixture(scope="module")
def done(workplace: Workplace) -> Command:
    require("horovod")
    require("dali")
    workplace.write("matrix.yaml", MATRIX)
    return workplace.run("raysuite", "run", "matrix.yaml")


@pytest.fixture(scope="module")
def results(done: Command, workplace: Workplace) -> Results:
    return workplace.results()


def losses(results: Results, place: int = 0) -> list[float]:
    return losses_of(results.records(results.plans()[place]["run_id"]))


def losses_of(records: list[Record]) -> list[float]:
    return [
        loss for record in records if isinstance(record, EpochFinished) for loss in record.losses
    ]


def test_what_is_printed_where_nobody_looks_on(done, results):
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == f"results: {results.folder}"
    for number in range(1, RUNS + 1):
        told = [line for line in lines if line.startswith(f"run {number} of {RUNS}  ")]
        told = [line for line in told if f" of {EPOCHS}: " not in line]  # an epoch that took long
        assert [
            word in line
            for word, line in zip(("started", "gate passed", "finished"), told, strict=True)
        ] == [True] * 3
    assert lines[-2] == str(results.folder / "report.html")
    assert lines[-1] == "MLflow: `raysuite ui` opens the table of these runs"


def test_a_row_a_run_each_passed_by_the_gate(done, results):
    rows = json.loads((results.folder / "rows.json").read_text("utf-8"))["rows"]
    assert [row["name"] for row in rows] == [
        "ddp · native · 2 workers",
        "horovod · dali · 2 workers",
    ]
    assert {row["gate"] for row in rows} == {"passed"}
    for row in rows:
        assert any(line.strip().startswith(row["name"]) for line in done.stdout.splitlines())


def test_the_files_that_are_left(results):
    names = {file.name for file in results.folder.iterdir()}
    assert {"report.html", "rows.csv", "rows.md", "rows.json", "spec.yaml", "plan.json"} <= names
    assert (results.folder / "spec.yaml").read_text("utf-8") == MATRIX
    for plan in results.plans():
        kinds = [record.kind for record in results.records(plan["run_id"])]
        assert kinds == [
            "run_started",
            "gate_verdict",
            *["epoch_finished"] * EPOCHS,
            "run_costs",
            "run_finished",
        ]
        assert_records(results.journal_file(plan["run_id"]).read_text("utf-8").splitlines())
        file = results.journal_file(plan["run_id"]).with_name("model.pt")
        model = Net(num_classes=10, in_channels=1, image_size=8)
        model.load_state_dict(torch.load(file, weights_only=True))


def test_the_report_says_the_same_again(results):
    before = json.loads((results.folder / "rows.json").read_text("utf-8"))
    again = CliRunner().invoke(app, ["report", str(results.folder), "--json"])
    assert json.loads(again.stdout)["rows"] == before["rows"]


def test_mlflow_holds_all_of_it_once(results, workplace):
    states = workplace.query("select name, status from runs")
    assert sum(name.endswith(f" {results.folder.name}") for name, _ in states) == 1
    assert len(states) == 1 + RUNS
    assert {status for _, status in states} == {"FINISHED"}
    nested = workplace.query("select value from tags where key = 'mlflow.parentRunId'")
    assert len(nested) == RUNS
    assert len(set(nested)) == 1
    counts = dict(workplace.query("select key, count(*) from metrics group by key"))
    assert counts["step/loss"] == RUNS * EPOCHS * STEPS
    epochs = {key: count for key, count in counts.items() if key.startswith("epoch/")}
    assert epochs
    assert set(epochs.values()) == {RUNS * EPOCHS}

    def sizes() -> list[int]:
        return [workplace.query(f"select count(*) from {table}")[0][0] for table in TABLES]

    once = sizes()
    assert sync(results, f"sqlite:///{workplace.folder}/mlflow.db").ok
    assert sizes() == once


def test_frameworks_and_loaders_do_the_same_work(results):
    for place in range(1, RUNS):
        assert losses(results, place) == pytest.approx(losses(results), rel=1e-4)


@pytest.mark.thorough
def test_without_ray_it_is_the_same(results, workplace):
    words = ["torchrun", "--nproc-per-node=2", "--standalone", "-m", "raysuite.train"]
    workplace.run(*words, "matrix.yaml", "--results", "bare", OMP_NUM_THREADS="1")
    bare = Results.open(workplace.folder / "bare")
    assert [plan["run_id"] for plan in bare.plans()] == [plan["run_id"] for plan in results.plans()]
    for place, plan in enumerate(results.plans()):
        ours, theirs = (each.records(plan["run_id"]) for each in (results, bare))
        assert [record.kind for record in theirs] == [record.kind for record in ours]
        assert losses(bare, place) == pytest.approx(losses(results, place), rel=1e-6)


def test_one_process_without_ray_does_the_same_work(results):
    document = parse_document(ALONE.replace("own:", "tests.integration.own:"), "alone.yaml")
    (plan,) = make_plans(document, gpus=0)
    alone = list(execute(plan, World(0, 1, 0, torch.device("cpu"))))
    ray = results.records(results.plans()[0]["run_id"])
    assert [record.kind for record in alone] == [record.kind for record in ray]
    assert losses_of(alone) == pytest.approx(losses(results), rel=1e-4)
