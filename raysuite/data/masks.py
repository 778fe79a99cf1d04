"""Augmentation of samples that consist of an image and a mask: both get the same view.

The views are those of classification (raysuite.data.views), determined by seed, epoch and sample. A
random crop is resized to the size of the whole image: the image bilinearly, and the mask to the
nearest pixel, so that class numbers are not mixed. Outside the image, image pixels are 0 and mask
pixels IGNORED_PIXEL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from raysuite.data.prepared import Prepared
from raysuite.data.views import views
from raysuite.errors import DataError
from raysuite.spec.datasets import IGNORED_PIXEL

Sample = tuple[Any, Any]


def augmented(
    prepared: Prepared, samples: Sequence[Sample], numbers: Sequence[int], draw: tuple[int, int]
) -> list[Sample]:
    """The views of (image [C, H, W], mask [H, W]) samples; `draw`: seed and epoch."""
    pairs = [(torch.as_tensor(image), torch.as_tensor(mask)) for image, mask in samples]
    sizes = np.array([[image.shape[2], image.shape[1]] for image, _ in pairs])
    found = views(prepared, np.array(numbers), sizes, draw)
    boxes = found.boxes.astype(int).tolist()  # whole numbers, as in all random views
    return [
        _view(image, mask, box, flip)
        for (image, mask), box, flip in zip(pairs, boxes, found.flips.tolist(), strict=True)
    ]


def check(sample: Sample, place: str) -> None:
    """Raise DataError unless a sample is an image and its mask."""
    image, mask = (getattr(each, "shape", None) for each in sample)
    whole = mask is not None and _holds(torch.as_tensor(sample[1]).dtype, IGNORED_PIXEL)
    matching = image is not None and tuple(image) == (*image[:1], *(mask or ()))
    if not (whole and matching) or len(image or ()) != 3:
        raise DataError(
            f"{place}: data.augment needs an image [C, H, W] and a mask [H, W] of an integer "
            f"dtype that can represent {IGNORED_PIXEL}; got {_described(sample[0])} and "
            f"{_described(sample[1])}; convert the mask to uint8, or omit data.augment and "
            "augment the samples in your data set"
        )


def _holds(dtype: torch.dtype, value: int) -> bool:
    whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    return whole and torch.iinfo(dtype).max >= value


def _described(value: Any) -> str:
    """The dtype and shape of an array or tensor; the type of anything else."""
    if not hasattr(value, "shape"):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _view(image: Tensor, mask: Tensor, box: list[int], flip: bool) -> Sample:
    size = mask.shape
    image, mask = _part(image, box, 0), _part(mask, box, IGNORED_PIXEL)
    if mask.shape != size:
        image = _resized(image, size)
        rows, columns = (
            ((torch.arange(wanted) + 0.5) * given / wanted).long()
            for wanted, given in zip(size, mask.shape, strict=True)
        )
        mask = mask[rows][:, columns]
    return (image.flip(-1), mask.flip(-1)) if flip else (image, mask)


_RESIZED = (torch.uint8, torch.float32, torch.float64)
"""The dtypes of images that torch can resize on CPUs."""


def _resized(image: Tensor, size: torch.Size) -> Tensor:
    """The image [C, H, W], resized bilinearly to `size`; whole numbers are rounded."""
    if image.is_complex():
        return torch.complex(_resized(image.real, size), _resized(image.imag, size))
    numbers = image if image.dtype in _RESIZED else image.double()
    found = functional.interpolate(numbers[None], size, mode="bilinear", antialias=True)[0]
    if not image.is_floating_point():
        found = found.round()
    return found.to(image.dtype)


def _part(pixels: Tensor, box: list[int], beyond: int) -> Tensor:
    """The part of `pixels` [..., H, W] in `box` (left, top, width, height). Outside the image, it
    is filled with `beyond`."""
    left, top, width, height = box
    found = pixels.new_full((*pixels.shape[:-2], height, width), beyond)
    inner = pixels[..., max(top, 0) : top + height, max(left, 0) : left + width]
    first, start = max(-top, 0), max(-left, 0)
    found[..., first : first + inner.shape[-2], start : start + inner.shape[-1]] = inner
    return found
