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
from raysuite.data.reading import read
from raysuite.data.rendering import Rendering
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
