"""native and DALI show the same pixels: how closely, for every kind of file and of view.

The bounds are those of docs/reference/data.md, which says where the differences come from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from raysuite.data import Slice, make_loader, prepare
from raysuite.data.prepared import Prepared
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.loaders import DaliOptions, LoaderOptions, NativeOptions
from tests.require import require

CPU = torch.device("cpu")
SIZES = ((500, 375), (333, 251), (231, 97), (64, 49), (97, 401))
"""Larger and smaller than the network's images; odd sides, which end within a block of chroma."""
SIDE = 112
KINDS = ("420", "422", "444", "grey", "progressive", "png")
MEAN, INSIDE, EDGE, CORNER = 0.25, 1.001, 255 / 8 + 1, 255 * 15 / 64 + 1
"""Largest differences in levels of 255: on average, inside, and of the outermost pixels. An eighth
of a triangle lies beyond an edge; the rest is seven eighths of it, or (7/8)^2 in a corner. One
level is rounding."""


ROUNDING = 1e-3
"""Levels that are lost and won where pixels are normalised and back."""


def photograph(seed: int, width: int, height: int) -> Image.Image:
    """Colours whose spectrum falls as 1/f, as in photographs, and a patch with hard edges."""
    draws = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    frequency[0, 0] = 1 / max(width, height)
    noise = draws.standard_normal((3, height, width))
    pixels = np.fft.ifft2(np.fft.fft2(noise) / frequency).real.transpose(1, 2, 0)
    pixels = 128 + 50 * (pixels - pixels.mean()) / pixels.std()
    pixels[height // 3 : height // 2, width // 3 : width // 2] = draws.integers(0, 256, 3)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write(path: Path, image: Image.Image, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me": an orientation that no loader follows
    if kind == "png":
        image.save(path.with_suffix(".png"), exif=exif)
        return
    subsampling = {"444": 0, "422": 1}.get(kind, 2)
    image.convert("L" if kind == "grey" else "RGB").save(
        path.with_suffix(".jpg"),
        quality=90,
        subsampling=subsampling,
        progressive=kind == "progressive",
        exif=exif,
    )


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    for split in ("train", "val"):
        (root / split / "only").mkdir(parents=True)
        for number, size in enumerate(SIZES):
            write(root / split / "only" / str(number), photograph(number, *size), request.param)
    return root


def prepared_as(folder: Path, cache: Path, augment: str, channels: int = 3) -> Prepared:
    data = DataOptions(
        name="image_folder", path=str(folder), image_size=SIDE, augment=augment, channels=channels
    )
    facts = DatasetFacts(len(SIZES), len(SIZES), 1, channels=channels, image_size=SIDE)
    return prepare(data, facts, cache)


def levels(prepared: Prepared, split: str, slices: list[Slice]) -> Tensor:
    """Differences between native's and DALI's images, in levels of 255."""
    options: list[LoaderOptions] = [NativeOptions(), DaliOptions()]
    both = []
    for each in options:
        loader = make_loader(prepared, split, each, CPU)
        both.append(torch.cat([batch.images for batch in loader.batches(slices)]))
        loader.close()
    native, dali = both
    return (native - dali).abs() * 255 * torch.tensor(prepared.std).view(-1, 1, 1)


def slices(draws: list[tuple[int, int] | None]) -> list[Slice]:
    return [Slice(np.arange(len(SIZES)), len(SIZES), len(SIZES), draw) for draw in draws]


@pytest.mark.parametrize(
    ("augment", "split", "fit"),
    [
        ("none", "val", "stretch"),
        ("resized_crop_flip", "val", "center"),
        ("resized_crop_flip", "train", "center"),
        ("pad_crop_flip", "train", "stretch"),
    ],
)
def test_native_and_dali_show_the_same(folder, tmp_path, augment, split, fit):
    require("dali")
    prepared = prepared_as(folder, tmp_path, augment)
    assert prepared.fit == fit
    draws = [(3, epoch) for epoch in range(8)] if split == "train" else [None]
    found = levels(prepared, split, slices(draws))
    assert found.mean(dim=(1, 2, 3)).max() < MEAN
    assert_within(found)


def assert_within(found: Tensor) -> None:
    assert found[:, :, 1:-1, 1:-1].max() <= INSIDE
    assert max(found[:, :, 1:-1].max(), found[:, :, :, 1:-1].max()) <= EDGE
    assert found.max() <= CORNER


def test_white_edges_of_a_black_image_come_close_to_the_bounds(tmp_path):
    require("dali")
    pixels = np.zeros((SIDE * 6, SIDE * 6), np.uint8)
    pixels[0] = pixels[:, 0] = 255
    for split in ("train", "val"):
        (tmp_path / "set" / split / "only").mkdir(parents=True)
        for number in range(len(SIZES)):
            Image.fromarray(pixels).save(tmp_path / "set" / split / "only" / f"{number}.png")
    found = levels(prepared_as(tmp_path / "set", tmp_path, "none"), "val", slices([None]))
    assert_within(found)
    assert found[:, :, 1:-1].max() > 0.75 * EDGE
    assert found.max() > 0.75 * CORNER


@pytest.mark.parametrize("kind", KINDS)
def test_decoded_pixels_are_equal(tmp_path, kind):
    require("dali")
    for split in ("train", "val"):
        (tmp_path / "set" / split / "only").mkdir(parents=True)
        for number in range(len(SIZES)):
            image = photograph(number, SIDE, SIDE)  # nothing is resized
            write(tmp_path / "set" / split / "only" / str(number), image, kind)
    prepared = prepared_as(tmp_path / "set", tmp_path / "cache", "none")
    assert levels(prepared, "val", slices([None])).max() < ROUNDING


def test_colours_that_are_made_grey_differ_no_more(folder, tmp_path):
    require("dali")
    found = levels(prepared_as(folder, tmp_path, "none", channels=1), "val", slices([None]))
    assert found.mean() < MEAN
    assert_within(found)
