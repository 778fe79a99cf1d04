"""The papers' studies: every form can be planned, and the smallest runs as a user runs it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.space import drawn
from raysuite.plan.trials import check_space, trial_plan
from raysuite.spec import read_document
from raysuite.spec.search_check import read_search
from tests.integration.workplace import ROOT, Workplace

pytestmark = pytest.mark.integration

STUDIES = {
    "aach2023-throughput": 3 * 9 * 3 * 3 * 3,
    "aach2023-schedules": 3 * 9 * 3,
    "aach2023-profile": 3 * 9 * 2,
    "mahon2020": 13 * 3 * 3,
    "frameworks-2026": 3 * 10 * 7,
    "ddlbench": (5 * 2 + 2 + 2 + 3) * 4 * 6,
}
"""Name -> runs of the full form."""

SWEEPS = {"sweep-quickstart": 12, "sweep-frameworks": 12, "sweep-population": 4}
"""Name -> trials."""


def spec_file(name: str) -> Path:
    return ROOT / "experiments" / f"{name}.yaml"


def plans(name: str, scale: str | None = None, gpus: int = 1024) -> list[RunPlan]:
    return make_plans(read_document(spec_file(name), scale=scale), gpus, elsewhere=True)


def test_every_experiment_is_known() -> None:
    files = {file.stem for file in (ROOT / "experiments").glob("*.yaml")}
    others = {"quickstart", "calibration", "pipelines", "gpt", "segmentation"}
    assert files == {*STUDIES, *SWEEPS, *others}


@pytest.mark.parametrize(("name", "trials"), SWEEPS.items())
def test_every_trial_of_a_sweep_can_be(name: str, trials: int) -> None:
    document = read_document(spec_file(name))
    search = read_search(document)
    check_space(document, search)
    found = list(drawn(search))
    assert len(found) == trials
    for number, values in enumerate(found):
        plan = trial_plan(document, values, number, gpus=0)
        assert plan.workers * plan.spec.resources.cpus_per_worker <= 2


@pytest.mark.parametrize("name", STUDIES)
def test_the_full_form_can_be_planned(name: str) -> None:
    found = plans(name)
    assert len(found) == STUDIES[name]
    assert {plan.spec.scale for plan in found} == {""}
    titles = Counter(plan.title for plan in found)
    assert max(titles.values()) == 1


@pytest.mark.parametrize("name", STUDIES)
def test_the_laptop_form_fits_on_two_cores(name: str) -> None:
    found = plans(name, "laptop", gpus=0)
    assert {plan.device for plan in found} == {"cpu"}
    assert max(plan.workers * plan.spec.resources.cpus_per_worker for plan in found) == 2
    assert {plan.spec.name for plan in found} == {f"{name}-laptop"}
    assert {plan.spec.scale for plan in found} == {"laptop"}
    for plan in found:
        data = plan.spec.data
        assert data.name == "digits" or (data.name in plan.spec.synthetic_data and data.root)


def test_the_paper_s_rates_and_batches() -> None:
    largest = max(plans("aach2023-throughput"), key=lambda plan: plan.workers)
    assert (largest.workers, largest.global_batch) == (1024, 65_536)
    assert largest.peak_lr == pytest.approx(0.025 * 1024)
    assert {plan.micro_batch for plan in plans("aach2023-schedules")} == {64}
    batches = {(plan.spec.data.name, plan.micro_batch) for plan in plans("ddlbench")}
    small = ("highres", 4)  # of GPipe
    assert batches == {("mnist", 128), ("cifar10", 64), ("imagenet", 32), ("highres", 32), small}


def test_data_make_makes_what_a_spec_has_of_synthetic_data() -> None:
    none = CliRunner().invoke(app, ["data", "make", str(spec_file("quickstart"))])
    assert "no `synthetic_data`" in none.stdout
    words = ["data", "make", str(spec_file("ddlbench")), "--scale", "laptop", "--dry-run"]
    assert CliRunner().invoke(app, words).stdout.count("as folder") == 4


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_in_small_from_data_to_report(workplace: Workplace) -> None:
    spec = [str(spec_file("ddlbench")), "--scale", "laptop"]
    workplace.run("raysuite", "data", "make", *spec)
    again = workplace.run("raysuite", "data", "make", *spec)
    assert again.stdout.count("complete already") == 4
    pipeline = "{name: pipeline, schedule: pipedream, balance: time}"
    few = "matrix={'strategy, data.name, data.image_size, training.batch_per_worker': "
    few += f"[[ddp, cifar10, 32, 8], [{pipeline}, imagenet, 72, 4]]}}"
    set_keys = ["model=mobilenet_v2", "resources.workers=2", few]
    workplace.run("raysuite", "run", *spec, *set_keys, "--no-mlflow")
    results = workplace.results()
    assert results.folder.parent.name == "ddlbench-laptop"
    assert {plan["spec"]["scale"] for plan in results.plans()} == {"laptop"}
    rows = json.loads((results.folder / "rows.json").read_text("utf-8"))["rows"]
    assert [row["gate"] for row in rows] == ["passed"] * 2
    assert all(row["throughput_images_per_s"]["mean"] > 0 for row in rows)
    assert {plan["dataset"]["train_samples"] for plan in results.plans()} == {16, 8}
    resumed = workplace.run("raysuite", "run", *spec, "--no-mlflow", "--resume")
    assert str(results.folder) in resumed.stdout
