"""Stand-ins: what they consist of, and what their pictures are like."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from raysuite.data.pixels import encode
from raysuite.data.prepared import Split
from raysuite.data.synthesis import SyntheticSet, plan_synthetic_set
from raysuite.data.synthesis.pictures import VERSION, Painter
from raysuite.errors import UserError
from raysuite.spec.datasets import NAMED, SPLITS
from tests.recorded import check


def drawn(
    synthetic: SyntheticSet, split: Split, count: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The first `count` pictures, as rows of values in 0..1, and their labels."""
    painter = Painter(synthetic)
    pairs = [painter.picture(split, sample) for sample in range(count)]
    rows = np.stack([pixels.ravel() for pixels, _ in pairs]) / 255
    return rows, np.array([label for _, label in pairs])


@pytest.mark.parametrize("name", NAMED)
def test_whole_ones_have_the_papers_counts(name: str) -> None:
    facts, synthetic = NAMED[name].facts, plan_synthetic_set(name)
    found = (synthetic.train, synthetic.val, synthetic.classes, synthetic.channels)
    assert found == (facts.train_samples, facts.val_samples, facts.classes, facts.channels)
    chunks = list(synthetic.chunks())
    for split in ("train", "val"):
        firsts = [chunk.first for chunk in chunks if chunk.split == split]
        images = [chunk.images for chunk in chunks if chunk.split == split]
        assert firsts == np.cumsum([0, *images])[:-1].tolist()
        assert sum(images) == getattr(synthetic, split)
    assert list(synthetic.class_names) == sorted(set(synthetic.class_names))
    assert len(synthetic.class_names) == facts.classes


@pytest.mark.parametrize(
    ("name", "form", "jpeg"),
    [
        ("mnist", "folder", False),
        ("cifar10", "folder", False),
        ("cifar10", "tfrecord", False),
        ("cifar10", "binary", False),
        ("imagenet", "folder", True),
        ("highres", "tfrecord", True),
    ],
)
def test_only_images_of_more_than_32_pixels_are_jpegs(name: str, form: str, jpeg: bool) -> None:
    assert (plan_synthetic_set(name, form).quality is not None) == jpeg


def test_qualities_names_and_sizes_are_those_of_the_set() -> None:
    for name, content, quality in (
        ("imagenet", "natural", 88),
        ("highres", "noise", 75),
        ("cifar10", "noise", None),
    ):
        assert plan_synthetic_set(name, "folder", content=content).quality == quality
    for name, first, last in (
        ("mnist", "0", "9"),
        ("cifar10", "airplane", "truck"),
        ("imagenet", "n00000001", "n00001000"),
        ("highres", "0000", "0999"),
    ):
        names = plan_synthetic_set(name).class_names
        assert (names[0], names[-1]) == (first, last)
    sizes = [plan_synthetic_set(name, "folder", size=(48, 48)) for name in ("mnist", "cifar10")]
    assert {(each.width, each.height) for each in sizes} == {(48, 48)}
    wide = plan_synthetic_set("highres", size=(64, 48))
    assert (wide.width, wide.height) == (64, 48)


def test_chunks_are_of_about_equal_sizes() -> None:
    def chunks(name: str, form: str, images: int) -> list[tuple[str, int, int, int, int]]:
        synthetic = plan_synthetic_set(name, form, images=images)
        return [(c.split, c.number, c.of, c.first, c.images) for c in synthetic.chunks()]

    assert chunks("mnist", "folder", 513) == [
        ("train", 0, 3, 0, 171),
        ("train", 1, 3, 171, 171),
        ("train", 2, 3, 342, 171),
        ("val", 0, 1, 0, 86),
    ]
    assert [each[-1] for each in chunks("mnist", "folder", 512)] == [256, 256, 85]
    assert [each[-1] for each in chunks("cifar10", "pickle", 23)] == [4, 5, 4, 5, 5, 10]
    assert [each[-1] for each in chunks("mnist", "tfrecord", 3000)] == [1500, 1500, 500]
    assert chunks("mnist", "idx", 20) == [("train", 0, 1, 0, 20), ("val", 0, 1, 0, 10)]


def test_imagenets_shards_are_those_of_tensorflow() -> None:
    assert plan_synthetic_set("imagenet", "tfrecord").shards == (1024, 128)


@pytest.mark.parametrize(
    ("name", "options", "train", "val", "classes"),
    [
        ("mnist", {"fraction": 0.01}, 600, 100, 10),
        ("mnist", {"images": 20}, 20, 10, 10),
        ("mnist", {"images": 2}, 2, 2, 2),
        ("mnist", {"fraction": 1.0, "classes": 1}, 60_000, 10_000, 1),
        ("cifar10", {"images": 5}, 5, 5, 5),
        ("highres", {"images": 29, "classes": 29, "size": (8, 2048)}, 29, 29, 29),
        ("imagenet", {"images": 20_000}, 20_000, 1000, 1000),
        ("imagenet", {"fraction": 0.01}, 12_812, 1000, 1000),
        ("imagenet", {"images": 200}, 200, 20, 20),
        ("imagenet", {"images": 200, "classes": 150}, 200, 150, 150),
        ("highres", {"fraction": 0.01}, 500, 100, 50),
    ],
)
def test_parts_keep_classes_that_can_be_learned(
    name: str, options: dict[str, Any], train: int, val: int, classes: int
) -> None:
    synthetic = plan_synthetic_set(name, **options)
    assert (synthetic.train, synthetic.val, synthetic.classes) == (train, val, classes)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("minst", {}, "imagenet, highres"),
        ("digits", {}, "comes with scikit-learn"),
        ("mnist", {"form": "binary"}, "folder or tfrecord"),
        ("mnist", {"fraction": 0.0}, "above 0, up to 1"),
        ("mnist", {"fraction": 0.5, "images": 3}, "one of them"),
        ("mnist", {"images": 1}, "two or more"),
        ("mnist", {"classes": 11}, "give 1 to 10"),
        ("mnist", {"size": (28, 32)}, "digits are square"),
        ("cifar10", {"size": (64, 64)}, "folder or tfrecord"),
        ("cifar10", {"images": 4}, "five or more"),
        ("imagenet", {"size": (4, 4)}, "8 to 2048"),
        ("imagenet", {"size": (8, 2049)}, "8 to 2048"),
        ("imagenet", {"size": (2048, 7)}, "8 to 2048"),
        ("imagenet", {"classes": 0}, "give 1 to 1000"),
        ("imagenet", {"images": 20, "classes": 21}, "give 1 to 20"),
        ("mnist", {"fraction": 1.01}, "above 0, up to 1"),
        ("imagenet", {"content": "white"}, "natural and noise"),
        ("imagenet", {"seed": -1}, "numbers from 0"),
    ],
)
def test_what_cannot_be_made_is_told(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        plan_synthetic_set(name, **options)
    assert message in str(error.value)


def test_pictures_of_a_version_are_as_recorded(tmp_path: Path) -> None:
    """If they change, VERSION does, so that no set is made of pictures of two versions."""
    found: dict[str, Any] = {}
    for name in NAMED:
        size = None if name in ("mnist", "cifar10") else (96, 72)
        for content in ("natural", "noise"):
            pictures = []
            for seed, split in itertools.product((0, 3), SPLITS):
                synthetic = plan_synthetic_set(
                    name, images=200, size=size, content=content, seed=seed
                )
                painter = Painter(replace(synthetic, upright=name == "imagenet"))
                pictures += [painter.picture(split, n) for n in (2, 1, 0)]  # in any order
            found[f"{name} {content} {VERSION}"] = [
                (label, pixels.shape, pixels.tobytes().hex()) for pixels, label in pictures
            ]
            assert len({pixels.tobytes() for pixels, _ in pictures}) == 12
    check("synthetic-pictures", found, tmp_path)


def test_every_class_has_its_share() -> None:
    painter = Painter(plan_synthetic_set("imagenet", images=100, classes=7))
    labels = [painter.label("train", sample) for sample in range(28)]
    blocks = [labels[at : at + 7] for at in range(0, 28, 7)]
    assert [sorted(block) for block in blocks] == [list(range(7))] * 4
    assert len({tuple(block) for block in blocks}) > 1


def test_one_photograph_in_four_stands_upright() -> None:
    painter = Painter(plan_synthetic_set("imagenet", images=200))
    shapes = [painter.picture("train", sample)[0].shape for sample in range(60)]
    assert set(shapes) == {(375, 500, 3), (500, 375, 3)}
    assert 5 <= shapes.count((500, 375, 3)) <= 25
    plain = Painter(plan_synthetic_set("imagenet", images=200, size=(80, 60)))
    assert {plain.picture("train", sample)[0].shape for sample in range(20)} == {(60, 80, 3)}


def test_amplitudes_fall_with_frequency_as_those_of_photographs() -> None:
    """van der Schaaf and van Hateren 1996 find f^-0.94 on average, with a deviation of 0.2 between
    pictures; the patterns of the classes lie at low frequencies and steepen it somewhat."""
    painter = Painter(plan_synthetic_set("highres", size=(256, 256)))
    window = np.hanning(256)[:, None] * np.hanning(256)
    power = np.zeros((256, 256))
    for sample in range(24):
        grey = painter.picture("train", sample)[0].mean(axis=2)
        power += np.abs(np.fft.fft2((grey - grey.mean()) * window)) ** 2
    cycles = np.hypot(*np.meshgrid(*[np.fft.fftfreq(256, 1 / 256)] * 2))
    rings = np.arange(5, 100)
    amplitude = [np.sqrt(power[np.round(cycles) == ring].mean()) for ring in rings]
    slope = np.polyfit(np.log(rings), np.log(amplitude), 1)[0]
    assert -1.2 < slope < -0.75


def test_channels_go_together_as_in_photographs() -> None:
    pixels, _ = drawn(plan_synthetic_set("cifar10"), "train", 300)
    correlation = np.corrcoef(pixels.reshape(-1, 3).T)
    assert 0.6 < correlation[0, 1] < 0.98
    assert 0.4 < correlation[0, 2] < 0.95


def test_noise_is_uniform() -> None:
    pixels, _ = drawn(plan_synthetic_set("highres", content="noise"), "train", 2)
    counts = np.bincount((pixels.ravel() * 255).round().astype(int), minlength=256)
    expected = counts.sum() / 256
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()


def test_jpegs_of_500_x_375_take_about_100_kilobytes() -> None:
    synthetic = plan_synthetic_set("imagenet")
    painter = Painter(synthetic)
    sizes = [len(encode(painter.picture("train", i)[0], synthetic.quality)) for i in range(40)]
    assert 80_000 < np.mean(sizes) < 120_000


@pytest.mark.parametrize("name", ["mnist", pytest.param("cifar10", marks=pytest.mark.thorough)])
def test_a_linear_model_learns_the_classes(name: str) -> None:
    synthetic = plan_synthetic_set(name)
    train, labels = drawn(synthetic, "train", 1000)
    val, truth = drawn(synthetic, "val", 500)
    model = LogisticRegression(C=0.01 if name == "cifar10" else 0.1, max_iter=500)
    score = model.fit(train, labels).score(val, truth)
    assert score > 0.6  # 0.1 by chance
    assert score < 1.0  # an accuracy that is always 1 would say nothing
