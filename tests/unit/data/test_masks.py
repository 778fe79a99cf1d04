"""A mask follows the augmentation of its image pixel by pixel.

Images hold the coordinates of their pixels, and masks the number of each pixel, so that both show
where they come from.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite.data import make_loader
from raysuite.data.formats import count_tensors, prepare
from raysuite.data.masks import check
from raysuite.data.order import permutation, rank_slices
from raysuite.data.prepared import Prepared
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.loaders import NativeOptions

HEIGHT, WIDTH, SAMPLES = 12, 20, 40
BEYOND = 255
CPU = torch.device("cpu")


class Coordinates(torch.utils.data.Dataset[Any]):
    """[2, H, W] of 1 + row and 1 + column, and [H, W] of row * W + column."""

    def __init__(self, split: str, kind: type = Tensor) -> None:
        rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
        self.sample = torch.stack([rows, columns]).float() + 1, rows * WIDTH + columns
        assert self.sample[1].max() < BEYOND

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Any:
        return self.sample


class Numbers(Coordinates):
    def __getitem__(self, number: int) -> Any:
        return self.sample[0], torch.zeros(3)


def prepared_for(augment: str, name: str = "Coordinates") -> Prepared:
    data = DataOptions(name=f"{__name__}:{name}", augment=augment)
    found = count_tensors(data)
    facts = DatasetFacts(found.train, found.val, 0, 0, 0, inputs=found.inputs)
    return prepare(data, facts)


def shown(augment: str, processes: int = 0, ranks: int = 1, epoch: int = 3) -> dict[int, Any]:
    """Sample -> the image and the mask that training is given."""
    prepared = prepared_for(augment)
    loader = make_loader(prepared, "train", NativeOptions(processes=processes), CPU)
    found = {}
    for rank in range(ranks):
        steps = list(rank_slices(permutation(SAMPLES, 0, epoch), 8, ranks, rank, 1, (0, epoch)))
        slices = [part for step in steps for part in step]
        for part, batch in zip(slices, loader.batches(slices), strict=True):
            for row, number in enumerate(part.ids[: part.real].tolist()):
                found[number] = batch.images[row], batch.labels[row]
    loader.close()
    return found


def follows(image: Tensor, mask: Tensor) -> bool:
    """Whether each pixel of the mask is the one that is nearest to where its image's pixel comes
    from: at most half a pixel away, and nowhere else than beyond the image without a class."""
    inside = mask != BEYOND
    if not torch.equal(inside, image[0] > 0):
        return False
    rows, columns = mask // WIDTH + 1, mask % WIDTH + 1
    away = torch.stack([image[0] - rows, image[1] - columns])[:, inside].abs()
    return bool((away <= 0.5 + 1e-4).all())


@pytest.mark.parametrize("augment", ["pad_crop_flip", "resized_crop_flip"])
def test_a_mask_follows_its_image(augment: str) -> None:
    found = shown(augment)
    assert sorted(found) == list(range(SAMPLES))
    assert all(follows(image, mask) for image, mask in found.values())
    middle = [
        image[1, HEIGHT // 2, [WIDTH // 2 - 2, WIDTH // 2 + 2]] for image, _ in found.values()
    ]
    mirrored = [bool(left > right > 0) for left, right in middle]
    assert 5 < sum(mirrored) < SAMPLES - 5
    assert len({mask.numpy().tobytes() for _, mask in found.values()}) > SAMPLES // 2
    if augment == "pad_crop_flip":
        assert any((mask == BEYOND).any() for _, mask in found.values())
        assert all(((i == i.round()).all()) for i, _ in found.values())


DEFECTS = {
    "not mirrored": lambda mask: mask.flip(-1),
    "a row off": lambda mask: mask.roll(1, 0),
    "a column off": lambda mask: mask.roll(1, 1),
    "interpolated": lambda mask: (
        torch.nn.functional.avg_pool2d(
            mask[None].float(), 3, 1, padding=1, count_include_pad=False
        )[0]
        .round()
        .long()
    ),
}


@pytest.mark.parametrize("augment", ["pad_crop_flip", "resized_crop_flip"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_mask_that_does_not_is_found(defect: str, augment: str) -> None:
    assert not all(follows(image, DEFECTS[defect](mask)) for image, mask in shown(augment).values())


class Whole(Coordinates):
    """The same with images of another dtype, and rows and columns 100 times as large."""

    dtype = torch.int16

    def __getitem__(self, number: int) -> Any:
        return (100 * self.sample[0]).to(self.dtype), self.sample[1]


class Halves(Whole):
    dtype = torch.float16


class Complex(Whole):
    dtype = torch.complex64


@pytest.mark.parametrize(
    ("name", "dtype", "error"),
    [("Whole", torch.int16, 0.5), ("Halves", torch.float16, 1.0), ("Complex", torch.complex64, 0)],
)
def test_images_of_every_dtype_are_resized_in_their_own(
    name: str, dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shown("resized_crop_flip")
    monkeypatch.setattr(f"{__name__}.prepared_for", partial(prepared_for, name=name))
    for number, (image, mask) in shown("resized_crop_flip").items():
        assert image.dtype == dtype
        assert torch.equal(mask, plain[number][1])
        assert ((image - 100 * plain[number][0]).abs() <= error + 1e-3).all()


def test_views_do_not_depend_on_ranks_but_on_the_epoch() -> None:
    one, two, later = (
        shown("resized_crop_flip", ranks=ranks, epoch=epoch)
        for ranks, epoch in ((1, 3), (2, 3), (1, 4))
    )
    assert all(torch.equal(one[n][0], two[n][0]) and torch.equal(one[n][1], two[n][1]) for n in one)
    assert not all(torch.equal(one[number][1], later[number][1]) for number in one)


def test_validation_and_auto_are_given_samples_as_they_are() -> None:
    for augment, split in (("auto", "train"), ("none", "train"), ("pad_crop_flip", "val")):
        prepared = prepared_for(augment)
        loader = make_loader(prepared, split, NativeOptions(), CPU)  # type: ignore[arg-type]
        draw = (0, 1) if split == "train" else None
        (step,) = rank_slices(np.arange(4), 4, 1, 0, 1, draw)
        (batch,) = loader.batches(step)
        loader.close()
        image, mask = Coordinates(split)[0]
        assert torch.equal(batch.images, image.expand_as(batch.images))
        assert torch.equal(batch.labels, mask.expand_as(batch.labels))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
def test_a_mask_that_cannot_hold_what_is_outside_the_image_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(DataError, match=rf"255; got .*{str(dtype).split('.')[1]}\[2, 2\]"):
        check((torch.zeros(3, 2, 2), torch.ones(2, 2, dtype=dtype)), "set[0]")


@pytest.mark.parametrize(
    ("image", "mask", "valid"),
    [
        (torch.zeros(3, 2, 4), torch.ones(2, 4, dtype=torch.uint8), True),
        (np.zeros((1, 2, 4)), np.ones((2, 4), np.int64), True),
        (torch.zeros(3, 2, 4), torch.ones(4, 2, dtype=torch.uint8), False),
        (torch.zeros(3, 2, 4), torch.ones(3, 2, 4, dtype=torch.uint8), False),
        (torch.zeros(2, 4), torch.ones(2, 4, dtype=torch.uint8), False),
        (torch.zeros(2, 4), torch.ones(4, dtype=torch.uint8), False),
        (torch.zeros(5, 3, 2, 4), torch.ones(3, 2, 4, dtype=torch.uint8), False),
        (torch.zeros(3, 2, 4), torch.ones(2, 4), False),
        (torch.zeros(3, 2, 4), 1, False),
        ([[1]], torch.ones(2, 4, dtype=torch.uint8), False),
    ],
)
def test_a_mask_is_of_the_whole_numbers_and_the_size_of_its_image(
    image: Any, mask: Any, valid: bool
) -> None:
    if valid:
        check((image, mask), "set[0]")
    else:
        with pytest.raises(DataError, match=r"^set\[0\]: data\.augment needs an image"):
            check((image, mask), "set[0]")


def test_what_is_no_image_with_a_mask_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"Numbers.*\[0\]: data\.augment needs an image \[C, H, W\]"
    ):
        prepared_for("pad_crop_flip", "Numbers")
