"""A label means one class, by its name, wherever two sets of names meet."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.data import formats, prepare
from raysuite.data.convert import convert, plan_conversion
from raysuite.data.set_check import check, detect, target_of
from raysuite.errors import DataError
from raysuite.plan import RunPlan
from raysuite.plan.trials import create_sweep, trial_plan
from raysuite.records import Journal, Results, RunFinished, RunStarted
from raysuite.spec import parse_document
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import other_class
from raysuite.track.model_registry import weights_of
from raysuite.train import stop_together
from raysuite.train.__main__ import _print, main
from raysuite.train.building import build_model
from raysuite.train.stop_together import Signals, Stop
from raysuite.train.world import world_from_environment
from tests import small_sets
from tests.unit.train.conftest import keep, plan_of, run


class Colours:
    """Two images of each class; `val` names the classes of the validation split."""

    def __init__(self, split: str, train: Any = ("red", "green"), val: Any = None) -> None:
        self.classes = train if split == "train" else val
        if self.classes is None:
            del self.classes

    def __len__(self) -> int:
        return 4

    def __getitem__(self, sample: int) -> tuple[Any, int]:
        return np.full((8, 8, 3), 50 * sample, np.uint8), sample % 2


def colours(**options: Any) -> DataOptions:
    return DataOptions(name=f"{__name__}:Colours", image_size=8, options=options)


@pytest.mark.parametrize(
    ("known", "found", "label"),
    [
        ("cat dog", "cat dog", None),
        ("cat dog", "dog cat", 0),
        ("cat dog", "cat kitten", 1),
        ("cat dog", "cat dog cow", 2),
        ("cat dog cow", "cat dog", 2),
        ("", "cat dog", None),  # not known
        ("0 1", "cat dog", None),  # numbers alone are no names
        ("0 1 2", "cat dog", 0),
        (" ".join(map(str, range(12))), " ".join(sorted(map(str, range(12)))), 2),
    ],
)
def test_the_first_class_with_another_name(known: str, found: str, label: int | None) -> None:
    assert other_class(known.split(), found.split()) == label
    assert other_class(found.split(), known.split()) == label


@pytest.mark.parametrize(
    "val", [("green", "red"), ("red", "blue"), ("red", "green", "blue"), ("red", "red"), 3]
)
def test_own_splits_with_other_classes_are_refused_and_found(val: Any) -> None:
    data = colours(val=val)
    with pytest.raises(DataError):
        formats.count(data)
    assert check(target_of(data)).errors == 1


@pytest.mark.parametrize("val", [None, ["red", "green"], 2])
def test_own_splits_of_the_same_classes(val: Any) -> None:
    data = colours(val=val)
    assert formats.count(data).classes == ("red", "green")
    assert check(target_of(data)).ok


def test_two_classes_of_one_name_are_refused_and_found(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'red'"):
        formats.count(colours(train=("red", "red")))
    data = small_sets.write("imagenet-tfrecord", tmp_path).data
    (tmp_path / "classes.txt").write_text("cat\ndog\ncat\n")
    with pytest.raises(DataError, match="'cat'"):
        formats.count(data)
    (finding,) = (each for each in check(detect(tmp_path)).findings if not each.note)
    assert (finding.place, finding.kind) == (str(tmp_path), "label")


def pictures(root: Path, names: Sequence[str]) -> Path:
    """An image folder; the n-th class is brighter than those before."""
    for split, count in (("train", 6), ("val", 2)):
        for level, name in enumerate(names):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((8, 8, 3), 40 + 70 * level + number, np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def rename(root: Path, old: str, new: str) -> None:
    for split in ("train", "val"):
        (root / split / old).rename(root / split / new)


def test_a_name_with_bytes_that_are_no_utf_8_is_the_same_everywhere(tmp_path: Path) -> None:
    root = pictures(tmp_path / "ours", (os.fsdecode(b"caf\xe9"), "tea"))
    plan = folder_plan(root)
    assert plan.dataset.class_names == ("caf\\xe9", "tea")
    last = run(plan)[-1]
    assert isinstance(last, RunFinished)
    assert last.classes is not None
    assert last.classes.names == plan.dataset.class_names
    convert(plan_conversion(root, tmp_path / "records"), workers=1)
    assert check(detect(tmp_path / "records")).ok
    data = DataOptions(name="tfrecord", path=str(tmp_path / "records"), image_size=8, classes=2)
    assert formats.count(data).classes == plan.dataset.class_names


def folder_plan(root: Path, **more: Any) -> RunPlan:
    data = {"name": "image_folder", "path": str(root), "image_size": 8}
    return plan_of(data=data, training_global_batch=4, **more)


def test_a_worker_with_other_classes_than_planned_is_refused(tmp_path: Path) -> None:
    root = pictures(tmp_path / "ours", ("cat", "dog"))
    plan = folder_plan(root)
    assert prepare(plan.spec.data, plan.dataset).classes == ("cat", "dog")
    rename(root, "cat", "kitten")
    with pytest.raises(DataError, match="'dog', but 'cat'"):
        prepare(plan.spec.data, plan.dataset)


def test_a_checkpoint_of_other_classes_is_refused(tmp_path: Path) -> None:
    root = pictures(tmp_path / "ours", ("cat", "dog"))
    run(folder_plan(root), checkpoint=keep(tmp_path / "kept"))
    rename(root, "cat", "kitten")
    with pytest.raises(DataError, match="the checkpoint"):
        run(folder_plan(root), resume=tmp_path / "kept" / "1")


SPEC = """
name: ours
model: tests.tiny_model:Tiny
data: {name: image_folder, path: ROOT, image_size: 8}
training: {epochs: 2, global_batch: 4}
resources: {device: cpu}
"""


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of a run that stopped in its first epoch; its images are in `ours`."""
    root = pictures(tmp_path / "ours", ("cat", "dog"))
    (tmp_path / "spec.yaml").write_text(SPEC.replace("ROOT", str(root)))
    monkeypatch.setattr(stop_together, "MEET_SECONDS", 0.0)
    calls = iter([None] * 2 + [Stop("time_limit")] * 1000)
    monkeypatch.setattr(Signals, "request", lambda _: next(calls))
    call = [str(tmp_path / "spec.yaml"), "--results", str(tmp_path / "results")]
    assert main(call) == 75
    monkeypatch.undo()
    return [*call, "--resume"]


@pytest.mark.parametrize("old", [False, True], ids=["", "begun by an earlier version"])
def test_a_run_is_resumed_with_its_own_classes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    again = stopped(tmp_path, monkeypatch)
    run_again = ["run", "--resume-from", str(tmp_path / "results"), "--dry-run", "--quiet"]
    assert CliRunner().invoke(app, run_again).exit_code == 0
    (state,) = tmp_path.rglob("loop.json")
    if old:
        state.write_text(json.dumps({**json.loads(state.read_text()), "classes": []}))
    rename(tmp_path / "ours", "cat", "kitten")
    done = CliRunner().invoke(app, run_again)
    assert done.exit_code == 2
    assert "'dog', but 'cat' in the plan" in done.stderr
    if not old:
        assert main(again) == 2
        rename(tmp_path / "ours", "kitten", "cat")
    assert main(again) == 0  # nothing was lost


def test_a_sweep_is_resumed_with_its_own_classes_only(tmp_path: Path) -> None:
    root = pictures(tmp_path / "ours", ("cat", "dog"))
    search = "search: {trials: 2, goals: [accuracy], space: {optimizer.lr: {choice: [0.1, 0.2]}}}"
    document = parse_document(f"{SPEC.replace('ROOT', str(root))}{search}\n", "spec.yaml")
    results = create_sweep(document, tmp_path / "results")
    results.add_plan(trial_plan(document, {"optimizer.lr": 0.1}, 0, 0).model_dump(mode="json"))
    rename(root, "cat", "kitten")
    done = CliRunner().invoke(app, ["sweep", "--resume-from", str(results.folder), "--quiet"])
    assert done.exit_code == 2
    assert "'dog', but 'cat' in the plan" in done.stderr


@pytest.fixture
def trained(tmp_path: Path) -> Results:
    """The results of a run on cats and dogs."""
    plan = folder_plan(pictures(tmp_path / "ours", ("cat", "dog")))
    results = Results(tmp_path / "results")
    results.folder.mkdir()
    results.write_plans([plan.model_dump(mode="json")])
    journal = Journal(results.journal_file(plan.run_id))
    for record in run(plan, model_file=weights_of(results, plan.run_id)):
        journal.write(record)
    return results


def without_names(results: Results, at_end: bool) -> None:
    """As an earlier version left it, which counted by class `at_end`, or did not."""
    plans = results.plans()
    for plan in plans:
        del plan["dataset"]["class_names"]
    results.write_plans(plans)
    for file in results.folder.rglob("journal.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            record.get("plan", {}).get("dataset", {}).pop("class_names", None)
            if not at_end:
                record.pop("classes", None)
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def evaluated(results: Results, root: Path) -> int:
    words = ["evaluate", str(results.folder), f"data.path={root}", "--json"]
    return CliRunner().invoke(app, words).exit_code


@pytest.mark.parametrize("recorded", ["in the plan", "at the end", "nowhere"])
def test_a_network_is_evaluated_on_its_own_classes_only(
    trained: Results, tmp_path: Path, recorded: str
) -> None:
    if recorded != "in the plan":
        without_names(trained, recorded == "at the end")
    other = 0 if recorded == "nowhere" else 2
    assert evaluated(trained, pictures(tmp_path / "same", ("cat", "dog"))) == 0
    assert evaluated(trained, pictures(tmp_path / "other", ("bee", "cow"))) == other
    # of one folder more, every class has another label
    assert evaluated(trained, pictures(tmp_path / "more", ("ant", "cat", "dog"))) == 2


@pytest.mark.parametrize(
    ("names", "kept"), [(("cat", "dog"), True), (("bee", "cow"), False), (("Dog", "cat"), False)]
)
def test_a_last_layer_for_other_classes_begins_at_random(
    trained: Results,
    tmp_path: Path,
    names: tuple[str, str],
    kept: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (plan,) = trained.plans()
    weights = weights_of(trained, plan["run_id"])
    model = {**plan["spec"]["model"], "weights": str(weights)}
    tuned = folder_plan(pictures(tmp_path / "theirs", names), model=model)
    begun = build_model(tuned, world_from_environment("cpu")).state_dict()
    saved = torch.load(weights, weights_only=True)
    same = {name: bool(torch.equal(begun[name], saved[name])) for name in saved}
    last = {name for name in saved if not same[name]}
    if kept:
        assert not last
    else:
        layer = list(saved)[-1].rpartition(".")[0]
        assert last == {f"{layer}.weight", f"{layer}.bias"}
    started = run(tuned)[0]
    assert isinstance(started, RunStarted)
    assert started.not_loaded == sorted(last)
    _print(tuned, started)
    said = capsys.readouterr().err
    assert all(name in said for name in last) if last else not said
