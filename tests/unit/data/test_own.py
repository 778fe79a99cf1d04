"""One's own data set: the example of docs/how-to/own-data.md, and its mistakes."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raysuite.data import formats, prepare
from raysuite.data.formats import Source, open_source
from raysuite.data.formats.own import _check
from raysuite.errors import DataError
from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.records import EpochFinished
from raysuite.spec import read_document
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.train.run import execute
from tests.pages import blocks, copied


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    code, spec = (blocks("own-data.md", kind)[0] for kind in ("python", "yaml"))
    files = {"my_data.py": code, "my_experiment.yaml": spec}
    with copied(files, tmp_path, monkeypatch) as folder:
        yield folder


@pytest.mark.thorough
def test_the_example_learns(example):
    plan = make_plans(read_document(example / "my_experiment.yaml"), gpus=0)[0]
    assert (plan.dataset.train_samples, plan.dataset.val_samples) == (300, 60)
    assert plan.dataset.classes == 3
    records = list(execute(plan, World(0, 1, 0, torch.device("cpu"))))
    last = [record for record in records if isinstance(record, EpochFinished)][-1]
    assert last.val_accuracy is not None
    assert last.val_accuracy > 0.5, "one in three by chance"


class Named:
    """`classes` as given."""

    def __init__(self, split: str, classes: Any) -> None:
        self.classes = classes

    def __len__(self) -> int:
        return 1

    def __getitem__(self, sample: int) -> Any:
        return np.zeros((2, 2), np.uint8), np.zeros(1)


def named(classes: Any) -> DataOptions:
    return DataOptions(name=f"{__name__}:Named", image_size=2, options={"classes": classes})


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (np.array(["b", "a"]), ("b", "a")),
        (np.int64(2), ("0", "1")),
        (torch.tensor(2), ("0", "1")),
        (range(3), ("0", "1", "2")),
    ],
)
def test_classes_are_a_sequence_of_names_or_their_number(classes, names):
    assert formats.count(named(classes)).classes == names
    assert formats.count_tensors(named(classes)).vocabulary == len(names)


@pytest.mark.parametrize("classes", [{"b": 1, "a": 0}, {"a", "b"}, "ab"])
def test_classes_that_are_not_in_the_order_of_the_labels_are_refused(classes):
    with pytest.raises(DataError, match=f"`classes` is a {type(classes).__name__}; valid: a list"):
        formats.count(named(classes))


class Odd:
    """Gives whatever the test has put here."""

    given: Any = None

    def __init__(self, split: str) -> None:
        pass

    def __len__(self) -> int:
        return 1

    def __getitem__(self, sample: int) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def source(channels: int = 3) -> Source:
    name = f"{Odd.__module__}:Odd"
    data = DataOptions(name=name, image_size=4, classes=2, channels=channels)
    return open_source(prepare(data, DatasetFacts(1, 1, 2, channels, 4)), "val")


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


GREY = np.arange(20, dtype=np.uint8).reshape(5, 4)
COLOUR = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)


@pytest.mark.parametrize(
    ("image", "pixels"),
    [
        (GREY, GREY[:, :, None]),
        (GREY[:, :, None], GREY[:, :, None]),
        (COLOUR[:, ::-1], COLOUR[:, ::-1]),
        (COLOUR.astype(np.uint16) << 8 | 7, COLOUR),
        (Image.fromarray(GREY.astype(np.uint16) << 8 | 7), np.repeat(GREY[:, :, None], 3, axis=2)),
        (Image.fromarray(COLOUR), COLOUR),
        (Image.fromarray(GREY), np.repeat(GREY[:, :, None], 3, axis=2)),
        (png(COLOUR), COLOUR),
        (torch.from_numpy(COLOUR), COLOUR),
    ],
)
@pytest.mark.parametrize("label", [1, np.int64(1), torch.tensor(1)])
def test_images_and_labels_of_many_kinds(image, pixels, label, monkeypatch):
    monkeypatch.setattr(sys.modules[Odd.__module__].Odd, "given", (image, label))
    read, number = source().read(0)
    assert np.array_equal(read, pixels)
    assert read.flags.c_contiguous
    assert number == 1
    assert type(number) is int


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((GREY.astype(np.float32), 0), "32-bit floats"),
        ((COLOUR.tolist(), 0), "64-bit signed integers"),
        ((COLOUR > 5, 0), "8-bit booleans"),
        ((Image.fromarray(GREY.astype(np.int32)), 0), "32-bit signed integers"),
        ((Image.fromarray(GREY.astype(np.float32)), 0), "32-bit floats"),
        (({"image": COLOUR}, 0), r"object of shape \[\]"),
        ((COLOUR.transpose(2, 0, 1), 0), r"uint8 of shape \[3, 5, 4\]"),
        ((GREY[:0], 0), r"uint8 of shape \[0, 4\]"),
        ((Image.new("RGB", (0, 4)), 0), r"of shape \[4, 0, 3\]"),
        ((b"no image", 0), "not a readable image"),
        ((COLOUR, "cat"), "raised ValueError: .*'cat'"),
        ((COLOUR, 1.5), "label is 1.5"),
        ((COLOUR, np.eye(3)[1]), r"shape \[3\]; expected \(image, class number\)"),
        ((COLOUR, torch.eye(3)[1]), r"shape \[3\]; expected \(image, class number\)"),
        ((COLOUR, Image.fromarray(GREY)), r"shape \[5, 4\]; expected \(image, class number\)"),
        ((COLOUR, {"class": 1}), r"a dict; expected \(image, class number\)"),
        ({"image": COLOUR, "mask": GREY}, r"'image', 'mask'; expected \(image, class number\)"),
        ((COLOUR, 1, GREY), r"a tuple of 3; expected \(image, class number\)"),
        (COLOUR, r"a ndarray; expected \(image, class number\)"),
        (None, r"a NoneType; expected \(image, class number\)"),
        (KeyError("x"), "raised KeyError: 'x'"),
    ],
)
def test_what_does_not_fit_names_the_sample(given, said, monkeypatch):
    monkeypatch.setattr(sys.modules[Odd.__module__].Odd, "given", given)
    with pytest.raises(DataError, match=rf"test_own:Odd\(split='val'\)\[0\].*{said}"):
        source().read(0)


class Fickle:
    """Its first instance has 3 samples like each other, the second one another of number 1."""

    instances = 0

    def __init__(self, split: str, second: str) -> None:
        Fickle.instances += 1
        self.second = second if Fickle.instances % 2 == 0 else ""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, sample: int) -> Any:
        other = self.second if sample == 1 else ""
        if other == "error":
            raise RuntimeError("gone")
        return COLOUR + (other == "image"), int(other == "label")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("", None),
        ("label", "its label differs when another instance"),
        ("image", "its image differs when another instance"),
        ("error", "at the second reading: "),
    ],
)
def test_a_sample_that_differs_at_its_second_reading_is_named(second, words, monkeypatch):
    module = sys.modules[Odd.__module__]
    facts = DatasetFacts(3, 3, 2, 3, 4)
    data = DataOptions(
        name=f"{Odd.__module__}:Fickle", image_size=4, classes=2, options={"second": second}
    )
    prepared = prepare(data, facts)
    monkeypatch.setattr(module.Fickle, "instances", 0)
    done: list[int] = []
    part = _check(prepared, "val", range(3), done.append)
    assert (part.images, part.unreadable, part.labels, done) == (3, 0, {0: 3}, [1, 1, 1])
    assert part.sizes == {(4, 5): 3}
    assert [(each.place, each.kind) for each in part.findings] == (
        [(f"{data.name}(split='val')[1]", "image")] if words else []
    )
    assert all(words in each.message for each in part.findings)


def test_labels_beyond_the_classes_are_named_and_counted(monkeypatch):
    monkeypatch.setattr(sys.modules[Odd.__module__].Odd, "given", (COLOUR, 2))
    data = DataOptions(name=f"{Odd.__module__}:Odd", image_size=4, classes=2)
    prepared = prepare(data, DatasetFacts(1, 1, 2, 3, 4))
    part = _check(prepared, "train", range(1), lambda count: None)
    assert part.labels == {2: 1}
    assert [each.message for each in part.findings] == ["label 2; valid: 0 to 1"]


class Tensors:
    """As many samples as are given for each split, of one kind each."""

    def __init__(self, split: str, train: int = 2, val: int = 1, given: str = "") -> None:
        self.count, self.width = (train, 3) if split == "train" else (val, 5)
        self.given, self.classes = given, ["a", "b"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, sample: int) -> Any:
        found = {
            "error": KeyError("x"),
            "text": (np.zeros(2), "cat"),
            "three": (1, 2, 3),
            "array": np.zeros(2),
        }.get(self.given, (np.zeros((self.width, 2), np.float32), sample))
        if isinstance(found, Exception):
            raise found
        return found


def test_samples_are_described_by_the_training_split():
    def counted(classes: int | None = None, **options: Any) -> Any:
        name = f"{Odd.__module__}:Tensors"
        return formats.count_tensors(DataOptions(name=name, classes=classes, options=options))

    found = counted()
    assert (found.train, found.val, found.vocabulary) == (2, 1, 2)
    assert found.inputs == '"float32[3, 2]"'
    assert counted(classes=7).vocabulary == 7
    for options, said in (
        ({"train": 0}, "no samples in train"),
        ({"val": 0}, "no samples in val"),
        ({"given": "error"}, r"\(split='train'\)\[0\] raised KeyError: 'x'"),
        ({"given": "text"}, r"\[0\] has a (list|tuple|str); valid: tensors"),
        ({"given": "three"}, r"\[0\] is a tuple of 3; expected \(inputs, targets\)"),
        ({"given": "array"}, r"\[0\] is a ndarray; expected"),
    ):
        with pytest.raises(DataError, match=said):
            counted(**options)
