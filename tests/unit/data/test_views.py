"""Views against the papers and torchvision's documentation, one sample after the other, with
Python's own numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raysuite.data import Prepared
from raysuite.data.views import Views, uniforms, views
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts

SIZES = np.array([[640, 480], [480, 640], [5, 400], [400, 5], [3, 3], [1, 1], [33, 32]] * 30)
IDS = np.arange(len(SIZES)) * 7 + 3
PREPARED = Prepared(
    data=DataOptions(name="cifar10", path="x"),
    facts=DatasetFacts(1000, 10, 10, 3, 224),
    classes=(),
    form="own",
    files=Path(),
    listing=None,
    augment="resized_crop_flip",
    fit="center",
    exact=False,
    mean=(0.0,),
    std=(1.0,),
)


def splitmix(seed: int, count: int) -> list[int]:
    """The first numbers of SplitMix64, written from Steele, Lea and Flood 2014, figure 17."""
    found = []
    for turn in range(1, count + 1):
        z = (seed + turn * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        found.append(z ^ (z >> 31))
    return found


def drawn(draw: tuple[int, int], sample: int, count: int) -> list[float]:
    """One stream by seed and epoch, of which each sample has a number that starts its own."""
    seed, epoch = draw
    golden = 0x9E3779B97F4A7C15
    (key,) = splitmix((splitmix(seed, 1)[0] + epoch - golden) % 2**64, 1)
    (start,) = splitmix((key + (sample - 1) * golden) % 2**64, 1)
    return [(each >> 11) / 2**53 for each in splitmix(start, count)]


def part_of(width: int, height: int, u: list[float]) -> list[float]:
    """RandomResizedCrop of torchvision, with `u` in the place of its draws: left, top, w, h."""
    for share, ratio, x, y in (u[at : at + 4] for at in range(0, 40, 4)):
        area = width * height * (0.08 + share * 0.92)
        aspect = math.exp(math.log(3 / 4) + ratio * (math.log(4 / 3) - math.log(3 / 4)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return [int(x * (width - w + 1)), int(y * (height - h + 1)), w, h]
    w, h = width, height
    if width / height < 3 / 4:
        h = round(w / (3 / 4))
    elif width / height > 4 / 3:
        w = round(h * (4 / 3))
    return [(width - w) // 2, (height - h) // 2, w, h]


def test_draws_are_those_of_splitmix64() -> None:
    # of the seed 1234567, as Vigna's own program prints them
    printed = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix(1234567, 3) == printed
    for draw in ((0, 0), (2023, 17)):
        expected = [drawn(draw, sample, 5) for sample in IDS.tolist()]
        assert uniforms(draw, IDS, 5).tolist() == expected


def test_random_parts_are_torchvisions() -> None:
    draw = (5, 2)
    found = views(PREPARED, IDS, SIZES, draw)
    u = [drawn(draw, sample, 41) for sample in IDS.tolist()]
    expected = [part_of(*size, own[1:]) for size, own in zip(SIZES.tolist(), u, strict=True)]
    assert found.boxes.tolist() == expected
    assert found.flips.tolist() == [own[0] < 0.5 for own in u]


@pytest.mark.parametrize(("draw", "augment"), [(None, "resized_crop_flip"), ((1, 1), "none")])
def test_without_a_draw_the_centre_is_shown(draw: tuple[int, int] | None, augment: str) -> None:
    prepared = replace(PREPARED, augment=augment)
    sizes = np.array([[500, 375], [256, 512]])
    found = views(prepared, np.arange(2), sizes, draw)
    # the shorter side becomes 256, and 224 of them are cut out: He et al. 2015, section 3.4
    assert found.boxes.tolist() == [[85.9375, 23.4375, 328.125, 328.125], [16, 144, 224, 224]]
    assert not found.flips.any()
    assert found.flips.shape == (2,)
    whole = views(replace(prepared, fit="stretch"), np.arange(2), sizes, draw)
    assert whole.boxes.tolist() == [[0, 0, 500, 375], [0, 0, 256, 512]]


def moved(side: int, count: int) -> Views:
    sizes = np.full((count, 2), side)
    return views(replace(PREPARED, augment="pad_crop_flip"), np.arange(count), sizes, (3, 4))


def test_a_shift_is_of_up_to_four_pixels_of_32_and_all_are_alike() -> None:
    found = moved(32, 8100)
    left, top = found.boxes[:, :2].T.astype(int)
    assert set(left) == set(top) == set(range(-4, 5))
    assert (found.boxes[:, 2:] == 32).all()
    # 18 kinds of view in each of 9 rows, with 50 of each on average (binomial, 5 deviations)
    kinds = np.bincount((left + 4) * 18 + (top + 4) * 2 + found.flips, minlength=162)
    assert abs(kinds - 50).max() < 5 * math.sqrt(50)
    u = [drawn((3, 4), sample, 3) for sample in range(8100)]
    assert found.flips.tolist() == [own[2] < 0.5 for own in u]
    assert left.tolist() == [int(9 * own[0]) - 4 for own in u]


def test_the_smallest_image_is_moved_by_a_pixel() -> None:
    assert set(moved(4, 100).boxes[:, 0]) == {-1, 0, 1}
