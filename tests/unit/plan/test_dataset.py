"""What a plan finds on disk: the counts of every set and form, and what it says is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysuite.data import formats
from raysuite.data.formats import Counts
from raysuite.errors import DataError, Mistake, SpecError
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.dataset import Datasets, check_unchanged, official, passed_over
from raysuite.spec import Document
from raysuite.spec.data_set import DataOptions, FeatureMap, root_of
from raysuite.spec.datasets import DatasetFacts
from tests import small_sets


def plans_of(data: DataOptions, **more: Any) -> list[RunPlan]:
    block = data.model_dump(mode="json", exclude_defaults=True)
    spec = {
        "name": "a",
        "model": "my:Net",
        "data": block,
        "training": {"epochs": 1, "global_batch": 2},
        **more,
    }
    return make_plans(Document(spec, "x.yaml"), 0)


def mistakes(**data: Any) -> list[Mistake]:
    with pytest.raises(SpecError) as raised:
        plans_of(DataOptions(**data))
    return list(raised.value.mistakes)


@pytest.mark.parametrize("kind", small_sets.KINDS)
def test_every_set_is_counted(kind: str, tmp_path: Path) -> None:
    small = small_sets.write(kind, tmp_path)
    (plan,) = plans_of(small.data)
    assert plan.dataset == small.facts
    assert plan.steps_per_epoch == 12


ONE: dict[str, Any] = {
    "name": "text",
    "format": "text",
    "path": "one",
    "root": None,
    "classes": 9,
    "sequence": 8,
    "features": FeatureMap(val="v-*"),
    "augment": "none",
    "bad_samples": "error",
    "options": {"a": 1},
    "image_size": 8,
    "channels": 1,
    "mean": (0.5,),
    "std": (0.5,),
    "transform": "a:b",
}
OTHER: dict[str, Any] = {
    "name": "tokens",
    "format": "tokens",
    "path": "two",
    "root": "two",
    "classes": 10,
    "sequence": 16,
    "features": FeatureMap(val="w-*"),
    "augment": "pad_crop_flip",
    "bad_samples": "skip",
    "options": {"a": 2},
}
"""Values on which the counts may depend."""
ALIKE = {"image_size": 9, "channels": 3, "mean": (0.4,), "std": (0.4,), "transform": "a:c"}
"""Values on which they never depend."""


@pytest.mark.parametrize("key", DataOptions.model_fields)
def test_sets_are_counted_apart_if_their_counts_may_differ(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[object] = []

    def count(data: object) -> Counts:
        counted.append(data)
        return Counts(1, 1, ())

    monkeypatch.setattr(formats, "count", count)
    seen = Datasets()
    for values in (ONE, ONE | {key: (OTHER | ALIKE)[key]}):
        seen.look(DataOptions.model_construct(**values))
    assert len(counted) == (2 if key in OTHER else 1)


def test_size_and_channels_may_be_overruled(tmp_path: Path) -> None:
    small = small_sets.write("cifar10-binary", tmp_path)
    data = small.data.model_copy(update={"image_size": 64, "channels": 1})
    (plan,) = plans_of(data)
    assert (plan.dataset.image_size, plan.dataset.channels) == (64, 1)


def test_elsewhere_a_named_set_counts_as_official(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "name": "a",
        "model": "resnet50",
        "data": {"name": "imagenet", "root": str(tmp_path)},
        "training": {"epochs": 1, "global_batch": 65_536},
    }
    (plan,) = make_plans(Document(spec, "x.yaml"), 4, elsewhere=True)
    facts = plan.dataset
    assert (facts.train_samples, facts.val_samples, facts.classes) == (1_281_167, 50_000, 1000)
    assert facts.class_names == tuple(map(str, range(1000)))
    assert plan.steps_per_epoch == 20
    with pytest.raises(SpecError, match=f"no folder {tmp_path}/imagenet-folder"):
        make_plans(Document(spec, "x.yaml"), 4)


def test_sets_below_a_root(tmp_path: Path) -> None:
    small = small_sets.write("cifar10-binary", tmp_path / "cifar10-binary")
    data = small.data.model_copy(update={"path": None, "root": str(tmp_path)})
    (plan,) = plans_of(data)
    assert plan.dataset == small.facts
    (wrong,) = mistakes(name="mnist", root=str(tmp_path))
    assert f"raysuite data make mnist --format idx --out {tmp_path}/mnist-idx" in wrong.message
    with pytest.raises(ValueError, match="is only for mnist"):
        DataOptions(name="digits", root="x")


def test_a_stand_in_that_is_asked_for_is_named(tmp_path: Path) -> None:
    data = DataOptions(name="mnist", root=str(tmp_path))
    with pytest.raises(SpecError, match="data make SPEC --scale laptop"):
        plans_of(data, synthetic_data={"mnist": {"images": 9}}, scale="laptop")
    with pytest.raises(SpecError, match="`raysuite data make SPEC`"):
        plans_of(data, synthetic_data={"mnist": {"images": 9}})
    with pytest.raises(SpecError) as raised:
        plans_of(data, synthetic_data={"cifar10": {"images": 9}})
    assert "asks for" not in raised.value.mistakes[0].message


def test_a_set_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = small_sets.write("image_folder-folder", tmp_path)
    seen: list[DataOptions] = []
    count = formats.count
    monkeypatch.setattr(formats, "count", lambda data: (seen.append(data), count(data))[1])
    matrix = {"seed": [0, 9], "data.image_size": [16, 32]}
    plans = plans_of(small.data, repeats=3, matrix=matrix)
    assert len(plans) == 12
    assert len(seen) == 1
    assert {plan.dataset.image_size for plan in plans} == {16, 32}


@pytest.mark.parametrize(
    ("name", "form", "words"),
    [
        (
            "mnist",
            "idx",
            ["no folder ROOT", "train-images-idx3-ubyte", "ossci-datasets.s3.amazonaws.com"],
        ),
        ("cifar10", "binary", ["no folder ROOT", "cifar-10-binary.tar.gz", "cs.toronto.edu"]),
        ("cifar10", "pickle", ["no folder ROOT", "cifar-10-python.tar.gz", "cs.toronto.edu"]),
        ("imagenet", "folder", ["no folder ROOT", "ILSVRC2012_img_train.tar", "image-net.org"]),
        ("imagenet", "tfrecord", ["no folder ROOT", "raysuite data convert"]),
        ("highres", "folder", ["no folder ROOT", "no official files"]),
    ],
)
def test_a_missing_set_says_whence_whereto_and_how(
    name: str, form: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSUITE_DATA", str(tmp_path))
    (found,) = mistakes(name=name, format=form)
    assert found.key == "data.name"
    for word in [*words, f"`raysuite data make {name} --format {form}`"]:
        assert word.replace("ROOT", str(tmp_path / f"{name}-{form}")) in found.message
    other = tmp_path / "elsewhere"
    (found,) = mistakes(name=name, format=form, path=str(other))
    assert found.key == "data.path"
    assert f"raysuite data make {name} --format {form} --out {other}`" in found.message


@pytest.mark.parametrize(
    ("kind", "gone", "named"),
    [
        ("mnist-idx", ["t10k-labels-idx1-ubyte", "train-images-idx3-ubyte"], "[.gz]"),
        ("cifar10-binary", ["data_batch_2.bin", "test_batch.bin"], ""),
        ("cifar10-pickle", ["data_batch_5"], ""),
        ("imagenet-tfrecord", ["train-00001-of-00003", "validation-00002-of-00003"], ""),
        ("mnist-tfrecord", ["train-00000-of-00003.tfrecord"], ""),
    ],
)
def test_all_missing_files_are_named(
    kind: str, gone: list[str], named: str, tmp_path: Path
) -> None:
    small = small_sets.write(kind, tmp_path)
    for path in [path for path in tmp_path.rglob("*") if path.name in gone]:
        path.unlink()
    (found,) = mistakes(**small.data.model_dump())
    for name in gone:
        assert f"{name}{named}" in found.message
    assert f" missing in {tmp_path}; " in found.message


def test_a_part_of_the_shards_is_taken_where_a_pattern_says_so(tmp_path: Path) -> None:
    small = small_sets.write("imagenet-tfrecord", tmp_path)
    (tmp_path / "train-00002-of-00003").unlink()
    features = small.data.features.model_copy(update={"train": "train-0000[01]-of-*"})
    (plan,) = plans_of(small.data.model_copy(update={"features": features}))
    assert plan.dataset.train_samples == 16


def test_a_missing_index_names_shard_and_remedy_or_is_done_without(tmp_path: Path) -> None:
    small = small_sets.write("imagenet-tfrecord", tmp_path)
    (tmp_path / "idx_files" / "validation-00001-of-00003.idx").unlink()
    (found,) = mistakes(**small.data.model_dump())
    assert f"no index of {tmp_path}/validation-00001-of-00003;" in found.message
    assert f"`raysuite data check {tmp_path} --write-index`" in found.message
    (plan,) = plans_of(small.data.model_copy(update={"bad_samples": "skip"}))
    assert plan.dataset == small.facts


def image_folder(root: Path, images: dict[str, int]) -> Path:
    for place, count in images.items():
        (root / place).mkdir(parents=True)
        for number in range(count):
            (root / place / f"{number}.{'PNG' if number % 2 else 'jpeg'}").touch()
        (root / place / "notes.txt").touch()
    return root


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ({}, "ROOT; expected"),
        ({"train/a": 1}, "ROOT/val: no folder of val images"),
        ({"other/a": 1}, "ROOT/train: no folder of train images, ROOT/val: no folder"),
        ({"train": 1, "val": 0}, "ROOT/train: no class folders"),
        ({"train/a": 0, "val/a": 0}, "ROOT/train: no images, ROOT/val: no images"),
        ({"train/a": 1, "val/a": 0}, "ROOT/val: no images"),
        ({"train/a": 1, "val/a": 1, "val/b": 1}, "ROOT/train/b: no folder of this class"),
        ({"train/a": 1, "train/b": 1, "val/a": 1}, "ROOT/val/b: no folder of this class"),
        ({"train/a": 1, "train/b": 0, "val/a": 1, "val/b": 1}, "ROOT/train/b: the class has no"),
        ({"train/a": 1, "val": 1}, "in one folder"),
    ],
)
def test_folders_that_are_no_data_set(tmp_path: Path, images: dict[str, int], words: str) -> None:
    root = image_folder(tmp_path / "set", images)
    (found,) = mistakes(name="image_folder", path=str(root), image_size=8)
    assert found.key == "data.path"
    assert words.replace("ROOT", str(root)) in found.message


def test_bad_samples_may_be_whole_classes(tmp_path: Path) -> None:
    images = {"train/a": 2, "train/b": 0, "train/c": 1, "val/a": 1, "val/b": 0}
    root = image_folder(tmp_path, images)
    data = DataOptions(name="image_folder", path=str(root), image_size=8, bad_samples="skip")
    (plan,) = plans_of(data)
    assert (plan.dataset.train_samples, plan.dataset.val_samples) == (3, 1)
    assert plan.dataset.classes == 3


OWN = {"name": "tests.small_sets:OwnSet", "image_size": 8}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "tests.small_sets:NoSuchSet"}, "has no 'NoSuchSet'"),
        ({"options": {"sizes": 3}}, "raised TypeError"),
        ({"options": {"counts": {"train": 0, "val": 3}}}, "samples in train"),
        ({"name": "builtins:dict", "options": {"a": 1}}, "classes is"),
        ({"name": "tests.small_sets:labels_of"}, "raised TypeError"),
        ({"name": "tests.small_sets:leaving"}, "raised SystemExit: 0"),
        ({"name": "types:SimpleNamespace"}, "SimpleNamespace; expected"),
        ({"classes": 7}, "data.classes is 7"),
    ],
)
def test_what_is_told_of_ones_own_set(change: dict[str, Any], words: str) -> None:
    (found,) = mistakes(**OWN | change)
    assert found.key == "data.name"
    assert words in found.message


def test_classes_beside_shards(tmp_path: Path) -> None:
    small = small_sets.write("tfrecord-tfrecord", tmp_path)
    (tmp_path / "classes.txt").write_text("a\nb\n")
    (found,) = mistakes(**small.data.model_dump())
    assert "data.classes is 4" in found.message


def test_official_sets_without_a_folder_here_are_named_once(tmp_path: Path) -> None:
    small = small_sets.write("cifar10-binary", tmp_path / "cifar10-binary")
    spec: dict[str, Any] = {
        "name": "a",
        "model": "resnet50",
        "data": {"name": "imagenet", "root": str(tmp_path)},
        "training": {"epochs": 1, "global_batch": 2},
        "repeats": 2,
        "matrix": {"data.format": ["folder", "tfrecord"]},
    }
    plans = make_plans(Document(spec, "x.yaml"), 4, elsewhere=True)
    digits = plans_of(DataOptions(name="digits"))
    assert official([*digits, *plans, *plans_of(small.data)]) == [
        "imagenet as folder",
        "imagenet as tfrecord",
    ]
    here = make_plans(Document({**spec, "data": small.data.model_dump(), "matrix": {}}, "x"), 4,
                      elsewhere=True)  # fmt: skip
    assert here[0].dataset == small.facts, "what is here is counted"


def test_files_that_are_no_images_are_counted_once_for_each_folder(tmp_path: Path) -> None:
    folders = [
        image_folder(tmp_path / name, {f"{split}/{label}": 2 for split in ("train", "val")
                                       for label in classes})
        for name, classes in (("a b", "xyz"), ("c", "xy"))
    ]  # fmt: skip
    clean = image_folder(tmp_path / "clean", {"train/x": 2, "val/x": 1})
    for note in clean.rglob("notes.txt"):
        note.unlink()
    plans = [
        plan
        for folder in [*folders, clean]
        for plan in plans_of(
            DataOptions(name="image_folder", path=str(folder), image_size=8), repeats=2
        )
    ]
    first, second = passed_over(plans)
    assert first.startswith(f"{folders[0]}: 6 files or folders are not images")
    assert f"`raysuite data check '{folders[0]}'`" in first
    assert second.startswith(f"{folders[1]}: 4 files or folders are not images")


def test_a_set_that_is_another_than_was_planned_is_not_resumed(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", {"train/a": 3, "train/b": 2, "val/a": 1, "val/b": 2})
    plans = plans_of(DataOptions(name="image_folder", path=str(root), image_size=8))
    plans += plans_of(DataOptions(name="digits"))
    check_unchanged(plans)
    for split in ("train", "val"):
        more = root / split / "a" / "more.jpeg"
        more.touch()
        with pytest.raises(DataError, match=f"{root}: the plan has 5 training and 3 validation"):
            check_unchanged(plans)
        more.unlink()
    (root / "train" / "b").rename(root / "train" / "c")
    (root / "val" / "b").rename(root / "val" / "c")
    with pytest.raises(DataError, match="'c'"):
        check_unchanged(plans)
    root.rename(tmp_path / "elsewhere")
    check_unchanged(plans)  # of a set that is on its workers' machines alone


def test_tokens_have_a_vocabulary_and_no_pixels(tmp_path: Path) -> None:
    for split, length in (("train", 100), ("val", 50)):
        (tmp_path / f"{split}.txt").write_bytes(b"a" * length)
    data = DataOptions(name="text", path=str(tmp_path), sequence=16)
    (plan,) = plans_of(data, task="language_model")
    # sequences of 16 tokens and the one after each: 99 and 49 are predicted
    assert plan.dataset == DatasetFacts(7, 4, 256, channels=0, image_size=0, sequence=16)
    check_unchanged([plan])


def test_samples_that_are_given_as_they_are_are_counted_and_have_no_pixels() -> None:
    name = "tests.task_sets:numbers"
    (plan,) = plans_of(DataOptions(name=name), task="regression")
    facts = plan.dataset
    assert (facts.train_samples, facts.val_samples, facts.class_names) == (45, 13, ())
    assert (facts.channels, facts.image_size, facts.sequence, facts.inputs) == (
        0,
        0,
        0,
        '"float32[3]"',
    )
    check_unchanged([plan])
    fewer = plan.model_copy(update={"dataset": replace(facts, train_samples=44)})
    with pytest.raises(DataError, match=f"^{name}: the plan has 44 .* this set has 45 training"):
        check_unchanged([fewer])


def test_class_weights_are_one_for_each_class() -> None:
    training = {"epochs": 1, "global_batch": 2, "class_weights": [0.5, 1]}
    with pytest.raises(SpecError) as caught:
        plans_of(DataOptions(name="digits"), training=training)
    (found,) = caught.value.mistakes
    assert (found.key, found.message) == (
        "training.class_weights",
        "got 2 weights; the data set has 10 classes; give one for each, or auto",
    )
    weights = [1.0 + number for number in range(10)]
    plans_of(DataOptions(name="digits"), training={**training, "class_weights": weights})


def test_a_set_is_looked_at_anew_where_what_its_counts_depend_on_differs(tmp_path: Path) -> None:
    seen = Datasets()
    root = image_folder(tmp_path / "set", {"train/a": 2, "val/a": 1})
    data = DataOptions(name="image_folder", path=str(root), image_size=8)
    found = seen.look(data)
    assert seen.look(data.model_copy(update={"image_size": 9, "mean": (0.1,)})) is found
    assert seen.look(data.model_copy(update={"bad_samples": "skip"})) is not found
    assert isinstance(seen.look(data.model_copy(update={"path": "/nowhere"})), str)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "image_folder"},
        {"format": "tfrecord"},
        {"path": "y"},
        {"root": "y"},
        {"classes": 3},
        {"features": DataOptions(name="mnist").features.model_copy(update={"train": "a*"})},
        {"bad_samples": "skip"},
        {"options": {"a": 1}},
        {"sequence": 7},
        {"augment": "none"},
        {},
    ],
)
def test_counts_are_those_of_the_very_set(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix may hold several sets; for the last one, samples as they are are counted."""
    for count in ("count", "count_tensors"):
        monkeypatch.setattr(formats, count, lambda data: object())
    seen, data = Datasets(), DataOptions(name="mnist", path="x")
    found = seen.look(data)
    other = data.model_copy(update=change)
    assert seen.look(other, tensors=not change) is not found
    assert seen.look(data) is found


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ({"name": "image_folder", "path": "~/images", "image_size": 8}, "/home/ada/images"),
        ({"name": "mnist", "root": "~/sets"}, "/home/ada/sets/mnist-idx"),
    ],
)
def test_the_folder_of_a_set_may_begin_at_home(
    options: dict[str, Any], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert root_of(DataOptions.model_validate(options)) == Path(folder)
