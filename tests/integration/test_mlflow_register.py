"""A trained network in MLflow's registry: others load it, and get what the run told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cli.console import print_text
from raysuite.orchestrate.tracking import Tracking
from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.records import (
    EpochFinished,
    Journal,
    Results,
    RunFinished,
    RunPruned,
    results_figures,
)
from raysuite.spec import parse_document
from raysuite.train.run import execute

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SPEC = """\
name: our-digits
model: {name: "their_model:Net", options: {width: 12}}
data: digits
optimizer: {name: sgd, lr: 0.2, momentum: 0.9}
training: {epochs: 3, global_batch: 64}
strategy: single
resources: {device: cpu}
matrix:
  seed: [1, 2]
"""

MODEL = """\
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, in_channels, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(16 * width, num_classes),
        )

    def forward(self, images):
        return self.layers(images)
"""

UNTRACEABLE = """\
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.head = nn.Linear(64 * in_channels, num_classes)

    def forward(self, images):
        if images.sum() > 0:
            images = -images
        return self.head(images.flatten(1))
"""

LOADS = """\
import sys, mlflow, numpy, torch
model = mlflow.pytorch.load_model(sys.argv[1])
pixels = numpy.load(sys.argv[2])
with torch.no_grad():
    numpy.save(sys.argv[3], model(torch.from_numpy(pixels)).numpy())
assert "raysuite" not in sys.modules and "their_model" not in sys.modules
"""


def trained(folder: Path, spec: str) -> Results:
    """Every run of a spec, in this process."""
    results = Results(folder)
    plans = make_plans(parse_document(spec, "spec.yaml"), gpus=0)
    results.write_plans([plan.model_dump(mode="json") for plan in plans])
    for plan in plans:
        journal = Journal(results.journal_file(plan.run_id))
        world = World(0, 1, 0, torch.device("cpu"))
        for record in execute(plan, world, model_file=journal.file.with_name("model.pt")):
            journal.write(record)
    return results


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Path]:
    """A folder with a user's model, two runs of it and an empty store."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "their_model.py").write_text(MODEL + UNTRACEABLE)
    sys.path.insert(0, str(folder))
    threads = torch.get_num_threads()
    trained(folder / "results", SPEC)
    torch.set_num_threads(threads)
    shutil.copy(empty_store, folder / "mlflow.db")
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("their_model", None)


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of one's own, with a copy of all that."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "results", tmp_path / "results")
    shutil.copy(made / "mlflow.db", tmp_path / "mlflow.db")
    return tmp_path


def register(*words: str) -> Any:
    return CliRunner().invoke(app, ["register", *words])


def client(place: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{place}/mlflow.db")


def environment(place: Path) -> dict[str, str]:
    """Without the user's model, and without raysuite, in the path."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    uri = f"sqlite:///{place}/mlflow.db"
    # MLflow then refuses every model whose loading could run code
    return {**kept, "MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}


def validation() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's own scans of the validation split, as pixels, and their labels."""
    from raysuite.data.formats.base import Listing
    from raysuite.spec.datasets import cache_dir

    digits = load_digits()
    listing = Listing.read(cache_dir() / "data" / "digits-8-v1" / "listing", "val")
    places = [int(Path(os.fsdecode(path)).stem) for path in listing.paths]
    scans = np.round(digits.images[places] * (255 / 16)).astype(np.uint8)
    return scans[:, None], digits.target[places]


def served(place: Path, pixels: np.ndarray) -> tuple[str, np.ndarray]:
    """URI of the second run's model, and its logits in a process that has neither code."""
    run = Results(place / "results").plans()[1]["run_id"]
    done = register("results", "--run", run, "--name", "Sam's digits", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["uri"], told["new"]) == ("models:/Sam's digits/1", True)
    np.save("pixels.npy", pixels)
    alone = place / "alone"
    alone.mkdir()
    words = [sys.executable, "-c", LOADS, told["uri"], "../pixels.npy", "../logits.npy"]
    subprocess.run(words, cwd=alone, env=environment(place), check=True, timeout=300)
    return told["uri"], np.load("logits.npy")


def test_it_is_served_with_the_accuracy_that_was_told(place: Path) -> None:
    pixels, labels = validation()
    _, logits = served(place, pixels)
    run = results_figures(Results(place / "results"))[1]
    assert float((logits.argmax(1) == labels).mean()) == pytest.approx(run.final_primary)


@pytest.mark.thorough
def test_mlflows_command_predicts_the_same(place: Path) -> None:
    pixels = validation()[0][:5]
    uri, logits = served(place, pixels)
    (place / "pixels.json").write_text(json.dumps({"inputs": pixels.tolist()}))
    words = [sys.executable, "-m", "mlflow", "models", "predict", "-m", uri]
    words += ["-t", "json", "-i", "../pixels.json", "-o", "../predicted.json"]
    words += ["--env-manager", "local"]
    alone = place / "alone"
    subprocess.run(words, cwd=alone, env=environment(place), check=True, timeout=300)
    predicted = json.loads((place / "predicted.json").read_text())["predictions"]
    assert np.array(predicted) == pytest.approx(logits, rel=1e-4, abs=1e-4)


def test_version_model_and_run_know_of_each_other(place: Path) -> None:
    results = Results(place / "results")
    run = results_figures(results)[0]
    assert register("results", "--run", run.run_id).exit_code == 0
    store = client(place)
    [version] = store.search_model_versions("name = 'our-digits'")
    assert version.tags["raysuite.run_id"] == run.run_id
    assert version.tags["raysuite.accuracy"] == f"{run.final_primary:.4f}"
    assert version.tags["raysuite.gate"] == "passed"
    model = store.get_logged_model(version.source.removeprefix("models:/"))
    assert (model.status, model.source_run_id) == ("READY", version.run_id)
    assert model.params["model.options.width"] == "12"
    [metric] = model.metrics
    assert (metric.key, metric.value) == ("validation_accuracy", run.final_primary)
    assert metric.dataset_name == "digits-val"
    logged = store.get_run(version.run_id)
    assert [output.model_id for output in logged.outputs.model_outputs] == [model.model_id]
    assert logged.data.params["seed"] == "1"

    import mlflow

    folder = Path(model.artifact_location.removeprefix("file://"))
    info = mlflow.models.get_model_info(str(folder))
    assert info.metadata["classes"] == [str(digit) for digit in range(10)]
    assert [spec.shape for spec in info.signature.inputs.inputs] == [(-1, 1, 8, 8)]
    assert [spec.shape for spec in info.signature.outputs.inputs] == [(-1, 10)]
    assert not list(folder.rglob("*.pth"))
    again = make_plans(parse_document((folder / "spec.yaml").read_text(), "spec.yaml"), gpus=0)
    assert [plan.spec.model_dump() for plan in again] == [
        {**results.plans()[0]["spec"], "matrix": {}}
    ]


def test_twice_is_once_and_other_weights_are_another_version(place: Path) -> None:
    results = Results(place / "results")
    first, second = (plan["run_id"] for plan in results.plans())
    for _ in range(2):
        done = register("results", "--run", first)
        assert done.exit_code == 0, done.output
    assert "already registered" in done.stdout
    named = json.loads(register("results", "--run", first, "--name", "other", "--json").stdout)
    assert (named["uri"], named["new"]) == ("models:/other/1", True)
    assert register("results", "--run", second).exit_code == 0
    weights = results.journal_file(first).with_name("model.pt")
    shutil.copy(results.journal_file(second).with_name("model.pt"), weights)
    done = register("results", "--run", first)
    assert done.stdout.strip().endswith("models:/our-digits/3")
    versions = client(place).search_model_versions("name = 'our-digits'")
    assert sorted(int(version.version) for version in versions) == [1, 2, 3]


def test_what_cannot_be_registered_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    results = Results(place / "results")
    first, second = (plan["run_id"] for plan in results.plans())
    several = register("results")
    assert several.exit_code == 2
    assert "--run" in several.stderr
    assert f"{first}  single" in several.stderr
    unknown = register("results", "--run", "nobody")
    assert (unknown.exit_code, "'nobody'" in unknown.stderr) == (2, True)
    named = register("results", "--run", first, "--name", "a/b")
    assert (named.exit_code, "'a/b'" in named.stderr) == (2, True)
    results.journal_file(first).with_name("model.pt").unlink()
    gone = register("results", "--run", first)
    assert (gone.exit_code, "no trained weights" in gone.stderr) == (2, True)
    alone = register("results", "--tracking-uri", "http://127.0.0.1:9")
    assert (alone.exit_code, "not registered" in alone.stderr) == (1, True)
    assert second in alone.stderr


def test_a_network_that_is_no_graph_is_told(made: Path, place: Path) -> None:
    odd = SPEC.replace("their_model:Net", "their_model:Odd").replace("{width: 12}", "{}")
    trained(place / "odd", odd.partition("matrix")[0])
    done = register("odd")
    assert done.exit_code == 2, done.output
    assert "their_model:Odd cannot be exported as a graph" in done.stderr
    assert client(place).search_registered_models() == []


def test_of_a_sweep_the_best_that_kept_its_weights(place: Path) -> None:
    results = Results(place / "results")
    runs = results_figures(results)
    search = {"space": {"seed": {"choice": [1, 2]}}, "goal": "accuracy", "trials": 3}
    results.write_search(search, "our-digits", {})
    top = max(runs, key=lambda run: run.final_primary or 0)
    done = register("results")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    [version] = client(place).search_model_versions("name = 'our-digits'")
    assert version.tags["raysuite.run_id"] == top.run_id
    # one that was ended early, and had reached more
    plan = {**results.plans()[0], "run_id": "early", "index": 2}
    results.add_plan(plan)
    journal = Journal(results.journal_file("early"))
    for record in results.records(top.run_id):
        if isinstance(record, EpochFinished):
            record = record.model_copy(update={"val_accuracy": 0.999})
        if not isinstance(record, RunFinished):
            journal.write(record.model_copy(update={"run_id": "early"}))
    journal.write(RunPruned(run_id="early", by="asha", epoch=2, value=0.999))
    done = register("results")
    assert "trial 2, the best, was ended early and kept no weights" in done.stderr
    assert f"the model of {top.name} is already registered" in done.stdout


def test_the_end_of_a_sweep_registers_its_best(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(place / "results")
    search = {"space": {"seed": {"choice": [1, 2]}}, "goal": "accuracy", "trials": 2}
    results.write_search(search, "our-digits", {})
    tracking = Tracking(f"sqlite:///{place}/mlflow.db", print_text)
    tracking.sync(results)
    tracking.register(results, silent=False)
    said = capsys.readouterr()
    assert said.out.strip().endswith("as models:/our-digits/1")
    assert said.err == ""
    for plan in results.plans():
        results.journal_file(plan["run_id"]).with_name("model.pt").unlink()
    tracking.register(results, silent=True)
    said = capsys.readouterr()
    assert (said.out, said.err.startswith("no model is registered: no trial of")) == ("", True)
