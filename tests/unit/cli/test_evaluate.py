"""Predictions and figures by class are those of the network that the run trained."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cli.evaluate import _MOST_CLASSES, _show_classes, _task_columns, _write
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished, Journal, Results
from raysuite.track.model_registry import weights_of
from raysuite.train.evaluation import Evaluation, TaskEvaluation
from tests.unit.train.conftest import plan_of
from tests.unit.train.conftest import run as execute

Trained = tuple[Results, EpochFinished]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return results_of(plan_of(data={"name": "digits"}), tmp_path_factory.mktemp("results"))


def results_of(plan: RunPlan, folder: Path) -> Trained:
    """A run's results, as `raysuite run` leaves them, and its last epoch."""
    results = Results(folder)
    results.write_plans([plan.model_dump(mode="json")])
    journal = results.journal_file(plan.run_id)
    journal.parent.mkdir(parents=True)
    records = execute(plan, model_file=weights_of(results, plan.run_id))
    for record in records:
        Journal(journal).write(record)
    return results, [each for each in records if isinstance(each, EpochFinished)][-1]


def test_it_is_what_validation_found(trained: Trained, tmp_path: Path) -> None:
    results, last = trained
    table = tmp_path / "predictions.csv"
    words = ["evaluate", str(results.folder), "--json", "--out", str(table)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["samples"] == 360
    assert found["accuracy"] == last.val_accuracy
    assert found["loss"] == pytest.approx(last.val_loss)
    confusion = np.array(found["confusion"])
    assert confusion.trace() / confusion.sum() == last.val_accuracy
    with table.open() as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == 360
    assert np.mean([line["label"] == line["predicted"] for line in lines]) == last.val_accuracy
    # digits are one folder a class, by which the place tells the label
    assert all(Path(line["place"]).parent.name == line["label"] for line in lines)


def test_samples_that_validation_left_out_are_left_out(tmp_path: Path) -> None:
    for split, label, number in itertools.product(("train", "val"), (0, 1), range(12)):
        file = tmp_path / "data" / split / f"class {label}" / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 100 * label + number).save(file)
    (tmp_path / "data" / "val" / "class 0" / "03.png").write_bytes(b"no image")
    data = {"name": "image_folder", "path": str(tmp_path / "data"), "image_size": 8}
    plan = plan_of(data={**data, "channels": 1, "bad_samples": "skip"}, training_global_batch=12)
    results, last = results_of(plan, tmp_path / "results")
    table = tmp_path / "predictions.csv"
    done = CliRunner().invoke(app, ["evaluate", str(results.folder), "--json", "--out", str(table)])
    assert done.exit_code == 0, done.output
    assert "leaves out 1 of 24 val samples" in done.stderr
    found = json.loads(done.stdout)
    assert (found["samples"], found["accuracy"]) == (23, last.val_accuracy)
    assert found["loss"] == pytest.approx(last.val_loss)
    with table.open() as stream:
        lines = {int(line["sample"]): Path(line["place"]) for line in csv.DictReader(stream)}
    assert set(range(24)) - lines.keys() == {3}
    assert lines[4].name == "04.png"


def test_other_data(trained: Trained) -> None:
    results, last = trained
    words = ["evaluate", str(results.folder), "data.format=tfrecord", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["accuracy"] == last.val_accuracy


@pytest.mark.parametrize("wrong", [["seed=1"], ["data.name=cifar10"], ["--run", "none"]])
def test_bad_input(trained: Trained, wrong: list[str]) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(trained[0].folder), *wrong])
    assert done.exit_code == 2


@pytest.mark.parametrize("out", ["", "file/predictions.csv"])
def test_an_out_that_cannot_be_written_is_refused_first(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    words = ["evaluate", str(tmp_path / "absent"), "--out", str(tmp_path / out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "give a file" in done.stderr
    assert str(tmp_path / "absent") not in done.stderr


def test_figures_by_class() -> None:
    labels, predicted = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 0])
    found = Evaluation(("a", "b", "c"), labels, predicted, np.ones(5, np.float32), 0.5)
    assert found.accuracy == pytest.approx(0.6)
    assert found.confusion.tolist() == [[1, 1, 0], [1, 2, 0], [0, 0, 0]]
    a, b, c = found.by_class()
    assert a == {"class": "a", "precision": 0.5, "recall": 0.5, "f1": 0.5, "samples": 2}
    assert (b["precision"], b["recall"], b["samples"]) == (2 / 3, 2 / 3, 3)
    assert (c["precision"], c["recall"], c["samples"]) == (None, None, 0)


def test_confused_classes_are_a_part_of_the_true_one(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [("a", "a", 5), ("a", "b", 3), ("b", "b", 1), ("b", "c", 4), ("c", "c", 2)]
    places = [("abc".index(x), "abc".index(y)) for x, y, many in pairs for _ in range(many)]
    labels, predicted = map(np.array, zip(*places, strict=True))
    found = Evaluation(("a", "b", "c"), labels, predicted, np.ones(15, np.float32), 0.5)
    _show_classes(found, {"split": "val"}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "15 images (val): accuracy 53.33%, loss 0.5"
    assert lines[-2:] == ["b predicted as c: 4 of 5", "a predicted as b: 3 of 8"]
    [row] = [line.split() for line in lines if line.split()[:1] == ["b"]][:1]
    assert row[1:] == ["5", "25.0%", "20.0%", "0.222"]  # 1 of 4 predictions, and of 5 images


def test_of_many_classes_those_with_the_lowest_recall_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Class n of 42 has n of its 41 samples right; the last has no sample."""
    size = _MOST_CLASSES + 2
    labels = np.repeat(np.arange(size - 1), size - 1)
    place = np.tile(np.arange(size - 1), size - 1)
    predicted = np.where(place < labels, labels, (labels + 1) % (size - 1))
    names = tuple(f"class{n}" for n in range(size))
    found = Evaluation(names, labels, predicted, np.ones(len(labels), np.float32), 0.5)
    _show_classes(found, {"split": "train"}, as_json=False)
    text = capsys.readouterr().out
    assert f"the {_MOST_CLASSES} classes with the lowest recall, of {size}" in text
    listed = [line.split() for line in text.splitlines() if line.split()[:1] and "%" in line]
    rows = [line for line in listed if line[0].startswith("class") and line[1] == "41"]
    assert [line[0] for line in rows] == [f"class{n}" for n in range(_MOST_CLASSES)]
    assert "class41" not in text.partition("predicted as")[0]


def test_a_place_that_is_not_utf_8_is_escaped(tmp_path: Path) -> None:
    places = [(0, "caf\udce9.png"), (1, "\u00e9.png")]
    _write(tmp_path / "out.csv", places, ("label",), [("a",), ("b",)])
    written = (tmp_path / "out.csv").read_text("utf-8")
    assert written.splitlines() == ["sample,place,label", r"0,caf\xe9.png,a", "1,\u00e9.png,b"]


def test_columns_of_outputs_are_numbered_where_there_are_several() -> None:
    pairs = np.array([[1.0, 2.0]]), np.array([[0.25]])
    names, rows = _task_columns(TaskEvaluation(1, 0.5, {}, pairs))
    assert (names, [*rows]) == (["target_0", "target_1", "output"], [["1", "2", "0.25"]])
    names, rows = _task_columns(TaskEvaluation(1, 0.5, {}, None))
    assert (names, [*rows]) == ([], [])


def test_the_training_split_is_evaluated_on_request(trained: Trained) -> None:
    words = ["evaluate", str(trained[0].folder), "--split", "train", "--json"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert (found["split"], found["samples"]) == ("train", 1437)
