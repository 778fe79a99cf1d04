"""Folders of a person's own images: what is taken, and what is told when it does not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.data import Prepared, Slice, formats, make_loader, prepare
from raysuite.data.convert import plan_conversion
from raysuite.data.formats import image_folder as folders
from raysuite.data.formats import open_source
from raysuite.data.set_check import check, detect
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import IMAGENET_MEAN, DatasetFacts
from raysuite.spec.loaders import NativeOptions
from tests import small_sets

NAMES = {
    "train": {"cat": ["b.PNG", "a.jpg"], "Ähre": ["ö x.jpeg"]},
    "val": {"cat": ["1.png"], "Ähre": []},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for split, classes in NAMES.items():
        for name, images in classes.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number, image in enumerate(images):
                Image.new("RGB", (20, 10), (number * 100, 50, 200)).save(folder / image)
            (folder / "Thumbs.db").touch()
    return root


def prepared(root: Path, channels: int = 3, **counts: int) -> Prepared:
    facts = DatasetFacts(
        train_samples=counts.get("train", 3),
        val_samples=counts.get("val", 1),
        classes=counts.get("classes", 2),
        channels=channels,
        image_size=8,
    )
    data = DataOptions(name="image_folder", path=str(root), image_size=8)
    return prepare(data, facts, root.parent / "cache")


def test_classes_and_images_are_sorted(root):
    found = prepared(root)
    assert found.classes == ("cat", "Ähre")
    source = open_source(found, "train")
    places = [Path(source.place(sample)).relative_to(root) for sample in range(3)]
    assert [str(place) for place in places] == [
        "train/cat/a.jpg",
        "train/cat/b.PNG",
        "train/Ähre/ö x.jpeg",
    ]
    assert [source.read(sample)[1] for sample in range(3)] == [0, 0, 1]


def test_the_name_of_a_class_may_have_bytes_that_are_no_utf_8(root):
    latin = os.fsdecode(b"caf\xe9")
    for split in ("train", "val"):
        (root / split / "cat").rename(root / split / latin)
    assert prepared(root).classes == (r"caf\xe9", "Ähre")


def test_images_are_resized_and_normalised(root):
    loader = make_loader(prepared(root), "train", NativeOptions(), torch.device("cpu"))
    (batch,) = loader.batches([Slice(np.array([1, 1]), real=1, of_global=1)])
    assert batch.images.shape == (2, 3, 8, 8)
    assert batch.images[0, 2, 0, 0].item() == pytest.approx((200 / 255 - 0.406) / 0.225)
    loader.close()


def test_grey_takes_the_mean_of_the_channels(root):
    found = prepared(root, channels=1)
    assert found.mean == (pytest.approx(sum(IMAGENET_MEAN) / 3),)
    loader = make_loader(found, "val", NativeOptions(), torch.device("cpu"))
    (batch,) = loader.batches([Slice(np.array([0]), real=1, of_global=1)])
    assert batch.images.shape == (1, 1, 8, 8)
    loader.close()


def test_a_changed_folder_is_listed_anew(root):
    prepared(root)
    Image.new("L", (5, 5)).save(root / "train" / "cat" / "c.png")
    assert open_source(prepared(root, train=4), "train").place(2).endswith("c.png")


def test_nothing_vanishes(root: Path) -> None:
    """Links that lead nowhere are images, hidden entries are nothing, and the rest is counted."""
    cat = root / "train" / "cat"
    (cat / "gone.png").symlink_to(root / "nowhere")
    (cat / "._a.jpg").touch()
    (root / "train" / ".ipynb_checkpoints").mkdir()
    (cat / "more").mkdir()
    (cat / "folder.png").mkdir()
    Image.new("RGB", (9, 9)).save(cat / "more" / "nested.png")
    Image.new("RGB", (9, 9)).save(root / "train" / "astray.png")
    data = DataOptions(name="image_folder", path=str(root), image_size=8)
    counts = formats.count(data)
    assert (counts.train, counts.val, counts.classes) == (4, 1, ("cat", "Ähre"))
    assert counts.passed_over == 4 + 3  # each class folder's Thumbs.db; more, folder, astray
    source = open_source(prepared(root, train=4), "train")
    with pytest.raises(DataError, match=r"train/cat/gone.png: cannot be read"):
        source.read(2)
    report = check(detect(root))
    assert [Path(each.place).name for each in report.findings if not each.note] == ["gone.png"]
    notes = [each.message for each in report.findings if each.kind == "file"]
    assert len(notes) == 2
    for name in ("more", "astray.png", "Thumbs.db"):
        assert name in notes[0]
    conversion = plan_conversion(root, root.parent / "shards")
    assert conversion.passed_over == counts.passed_over


def test_plan_tells_what_is_passed_over(root: Path) -> None:
    spec = root.parent / "spec.yaml"
    data = f"{{name: image_folder, path: {root}, image_size: 8}}"
    spec.write_text(
        f"name: odd\nmodel: resnet20\ndata: {data}\ntraining: {{epochs: 1, global_batch: 2}}\n"
    )
    told = CliRunner().invoke(app, ["plan", str(spec), "--gpus", "0"])
    assert told.exit_code == 0, told.output
    assert "4 files or folders" in told.stdout
    (plan,) = json.loads(CliRunner().invoke(app, ["plan", str(spec), "--json"]).stdout)
    assert plan["dataset"]["passed_over"] == 4


def test_what_has_not_changed_is_not_listed_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []
    find = folders.find
    monkeypatch.setattr(folders, "find", lambda data: listed.append(data) or find(data))

    def age() -> None:
        for folder in [*root.glob("*"), *root.glob("*/*")]:
            os.utime(folder, (10**9, 10**9))

    age()
    first, second = prepared(root), prepared(root)
    assert first == second
    assert len(listed) == 1
    Image.new("L", (5, 5)).save(root / "train" / "cat" / "c.png")
    for times in (2, 3):  # of folders one has just changed, and may change at the same time again
        assert len(prepared(root, train=4).classes) == 2
        assert len(listed) == times
    age()  # another file at the same time is what no time tells
    (root / "val" / "cat" / "2.png").symlink_to("1.png")
    os.utime(root / "val" / "cat", (10**9 + 1, 10**9 + 1))
    with pytest.raises(DataError, match="4 training and 2 validation"):
        prepared(root, train=4)


def test_classes_of_an_official_set_alone_may_lack_validation_images(root: Path) -> None:
    (root / "val" / "Ähre").rename(root / "val" / ".hidden")
    official: Any = {"name": "mnist", "format": "folder", "path": str(root)}
    counts = formats.count(DataOptions(**official))
    assert (counts.train, counts.val, counts.classes) == (3, 1, ("cat", "Ähre"))
    own: Any = {"name": "image_folder", "path": str(root), "image_size": 8}
    with pytest.raises(
        DataError, match="val/Ähre: no folder of this class, although train has one"
    ):
        formats.count(DataOptions(**own))
    assert formats.count(DataOptions(**own, bad_samples="skip")).train == 3
    for path in (root / "train" / "Ähre").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="train/Ähre: the class has no images"):
        formats.count(DataOptions(**official))
    (root / "val").rename(root / "other")
    with pytest.raises(DataError, match=f"val missing in {root}"):
        formats.count(DataOptions(**official))


@pytest.mark.parametrize("layout", ["", "-devkit", "-kaggle"])
def test_the_state_of_a_set_is_of_all_folders_and_files_of_labels(
    layout: str, tmp_path: Path
) -> None:
    data = small_sets.write(f"imagenet-folder{layout}", tmp_path).data
    paths = [path for path in tmp_path.rglob("*") if path.suffix != ".JPEG"]
    paths = [path for path in paths if path.is_file() or path.name not in "ILSVRC CLS-LOC Data"]
    paths = [path for path in paths if "devkit" not in path.name and path.name != "data"]
    assert len(paths) == {"": 8, "-devkit": 7, "-kaggle": 6}[layout]
    for path in paths:
        os.utime(path, (10**9, 10**9))
    changed, state = folders.folder_state(data)
    assert changed == 10**9
    states = {state}
    for number, path in enumerate(paths, 1):
        os.utime(path, (10**9, 10**9 + number))
        changed, state = folders.folder_state(data)
        assert changed == 10**9 + number
        states.add(state)
    for other in ({"bad_samples": "skip"}, {"name": "highres"}):
        states.add(folders.folder_state(data.model_copy(update=other))[1])
    assert len(states) == 1 + len(paths) + 2
