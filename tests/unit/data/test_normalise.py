"""Batches in the memory format that the network takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from raysuite.data import Prepared, Slice, make_loader, prepare, rendering
from raysuite.data.formats import open_source
from raysuite.data.normalise import Normalise
from raysuite.data.prepared import check_as_planned, normalisation
from raysuite.data.reading import read
from raysuite.data.rendering import Rendering
from raysuite.data.transforms import transformed
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.loaders import DaliOptions, SyntheticOptions
from tests import small_sets
from tests.require import require

CPU = torch.device("cpu")
FORMATS = (torch.contiguous_format, torch.channels_last)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("coloured")
    small = small_sets.write("cifar10-binary", folder / "set")
    return prepare(small.data, small.facts, folder / "cache")


def test_a_gpu_writes_the_format_of_the_run(coloured: Prepared) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8, generator=generator)
    found = [
        Normalise(Rendering(coloured, "exact"), CPU, last)._by_gpu(pixels) for last in (False, True)
    ]
    assert torch.equal(*found)
    for images, strides in zip(found, FORMATS, strict=True):
        assert images.contiguous(memory_format=strides) is images  # Autocast copies nothing


@pytest.mark.parametrize("options", [SyntheticOptions(), DaliOptions()], ids=lambda each: each.name)
def test_loaders_that_do_not_normalise_here(coloured: Prepared, options: Any) -> None:
    if options.name == "dali":
        require("dali")
    found = []
    for last in (False, True):
        loader = make_loader(coloured, "train", options, CPU, last)
        (batch,) = loader.batches([Slice(np.arange(3), 3, 3)])
        found.append(batch.images)
        loader.close()
    assert torch.equal(*found)
    for images, strides in zip(found, FORMATS, strict=True):
        assert images.is_contiguous(memory_format=strides)


@pytest.mark.parametrize("shape", [(5, 7, 3), (3, 600, 1), (2, 513, 3), (1, 1, 3), (2, 900, 4)])
def test_c_and_numpy_give_the_same_bits(
    coloured: Prepared,
    shape: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require("compiler")
    draws = np.random.default_rng(3)
    image = draws.integers(0, 256, shape).astype(np.uint8)
    one = Rendering(coloured, "exact")
    shift, scale = draws.random((2, shape[2], 1, 1), np.float32)
    object.__setattr__(one, "constants", (shift * 255, 1 / scale))
    by_c, by_numpy = np.empty((2, shape[2], *shape[:2]), np.float32)
    assert rendering._library() is not None
    one._normalise(image, by_c)
    monkeypatch.setattr(rendering, "_library", lambda: None)
    one._normalise(image, by_numpy)
    assert by_c.tobytes() == by_numpy.tobytes()
    expected = (np.moveaxis(image, 2, 0) - (shift * 255).astype(np.float64)) / scale
    assert np.allclose(by_c, expected, rtol=1e-4, atol=1e-3)


def inverted(image: NDArray[np.uint8], draws: np.random.Generator | None) -> NDArray[np.uint8]:
    return 255 - image


@pytest.mark.parametrize(("draw", "flips"), [(None, {False}), ((0, 1), {False, True})])
def test_ones_own_transform_changes_every_image_in_both_types(
    coloured: Prepared, draw: tuple[int, int] | None, flips: set[bool]
) -> None:
    """Both mirrored and others, and in validation, where none is mirrored."""
    data = coloured.data.model_copy(update={"transform": f"{__name__}:inverted"})
    plain = Rendering(coloured, "exact")
    own = Rendering(replace(coloured, data=data), "exact")
    source, count = open_source(coloured, "train"), coloured.facts.train_samples
    samples = Slice(np.arange(count), count, count, draw)
    assert set(read(source, coloured, samples).views.flips.tolist()) == flips
    pixels, found = np.empty((2, count, 32, 32, 3), np.uint8)
    plain.write(source, samples, pixels)
    own.write(source, samples, found)
    assert np.array_equal(found, 255 - pixels)
    values, expected = np.empty((2, count, 3, 32, 32), np.float32)
    own.write(source, samples, values)
    plain.normalise(255 - pixels, expected)
    assert np.array_equal(values, expected)
    source.close()


def drawing(image: NDArray[np.uint8], draws: np.random.Generator | None) -> NDArray[np.uint8]:
    """Overwrite what is given, to show that it is a copy."""
    image[:] = 7 if draws is None else draws.integers(0, 256, image.shape, np.uint8)
    return image


def test_random_numbers_of_a_transform_follow_seed_epoch_and_sample(coloured: Prepared) -> None:
    data = coloured.data.model_copy(update={"transform": f"{__name__}:drawing"})
    own, image = replace(coloured, data=data), np.zeros((4, 4, 3), np.uint8)
    draws = [(5, (0, 1)), (6, (0, 1)), (5, (1, 0)), (5, (1, 1)), (5, (0, 0))]
    found = [transformed(own, image, sample, draw, "here").tobytes() for sample, draw in draws]
    assert len({*found}) == len(found)
    assert transformed(own, image, *draws[0], "here").tobytes() == found[0]
    assert set(transformed(own, image, 5, None, "here").ravel()) == {7}
    assert not image.any()
    assert transformed(coloured, image, 5, (0, 1), "here") is image


def of_other_shape(image: NDArray[np.uint8], draws: object) -> NDArray[np.uint8]:
    return image[:, :-1]


def of_other_type(image: NDArray[np.uint8], draws: object) -> NDArray[np.float32]:
    return image.astype(np.float32)


def leaving(image: object, draws: object) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "of_other_shape",
            r"returned uint8 of shape \[4, 3, 3\]; expected uint8 of shape \[4, 4, 3",
        ),
        ("of_other_type", r"returned float32 of shape \[4, 4, 3\]"),
        ("leaving", "raised SystemExit: 3"),
    ],
)
def test_a_transform_that_changes_more_than_pixels_is_named(
    coloured: Prepared, name: str, said: str
) -> None:
    data = coloured.data.model_copy(update={"transform": f"{__name__}:{name}"})
    with pytest.raises(DataError, match=rf"^here: data\.transform {__name__}:{name} {said}"):
        transformed(replace(coloured, data=data), np.zeros((4, 4, 3), np.uint8), 0, (0, 1), "here")


def test_a_set_of_other_counts_or_classes_than_the_plan_is_refused(coloured: Prepared) -> None:
    facts, files = replace(coloured.facts, classes=2, class_names=("a", "b")), coloured.files
    found = {"train": facts.train_samples, "val": facts.val_samples}
    check_as_planned(facts, found, ("a", "b"), files)
    check_as_planned(replace(facts, channels=0, class_names=()), found, (), files)
    for counts, names in (
        (found | {"train": 1}, ("a", "b")),
        (found | {"val": 1}, ("a", "b")),
        (found, ("a",)),
        (found, ("b", "a")),
    ):
        with pytest.raises(DataError, match="begin a new run"):
            check_as_planned(facts, counts, names, files)


@pytest.mark.parametrize(
    ("data", "channels", "mean", "std"),
    [
        ({"name": "digits"}, 1, (0.3058,), (0.3761,)),
        ({"name": "mnist"}, 3, (0.1307,) * 3, (0.3081,) * 3),
        ({"name": "cifar10"}, 3, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ({"name": "a:b"}, 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ({"name": "a:b"}, 1, (0.449,), (0.226,)),
        ({"name": "mnist", "mean": (0.5,), "std": (0.25,)}, 1, (0.5,), (0.25,)),
        ({"name": "digits", "mean": (0.1, 0.2, 0.6), "std": (1, 2, 3)}, 1, (0.3,), (2.0,)),
    ],
)
def test_pixels_are_normalised_by_the_given_values_or_those_of_the_set(
    data: dict[str, Any], channels: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    found = normalisation(DataOptions(**data), channels)
    assert found == (pytest.approx(mean), pytest.approx(std))
