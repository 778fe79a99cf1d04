"""Augmentation: the region of each image that the network gets (the view), possibly mirrored.

A view depends only on seed, epoch and sample. Every loader therefore delivers the same view, for
any number of ranks, and also if an epoch is resumed in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raysuite.data.prepared import Prepared

SCALE = (0.08, 1.0)
"""Range of the area of a random crop, relative to the image's area: Szegedy et al. 2015, "Going
deeper with convolutions", section 6 (arXiv:1409.4842)."""
RATIO = (3 / 4, 4 / 3)
"""Range of the aspect ratio (width / height) of a random crop; same source as SCALE."""
TRIES = 10
"""Number of random crops that are tried before a centred crop is used, as in torchvision's
RandomResizedCrop."""
SHORT_SIDE = 256 / 224
"""In validation, the image's shorter side is resized to this multiple of the side of the centre
crop: He et al. 2015."""
SHIFT = 1 / 8
"""The largest shift of pad_crop_flip, relative to the image's width or height: 4 of CIFAR's 32
pixels (He et al. 2015, 4.2)."""


@dataclass(frozen=True)
class Views:
    """boxes: [b, 4] left, top, width and height in source pixels, float64; whole numbers if the
    views are augmented. With pad_crop_flip, boxes may extend beyond the image; pixels outside it
    are zero. flips: [b] bool, True if the view is mirrored left to right."""

    boxes: NDArray[np.float64]
    flips: NDArray[np.bool_]


def views(
    prepared: Prepared,
    ids: NDArray[np.int64],
    sizes: NDArray[np.int64],
    draw: tuple[int, int] | None,
) -> Views:
    """The views of the samples `ids`, whose images have `sizes` [b, 2] (width, height)."""
    if draw is None or prepared.augment == "none":
        size = prepared.facts.image_size
        boxes = _whole(sizes) if prepared.fit == "stretch" else _centre(sizes, size)
        return Views(boxes, np.zeros(len(ids), np.bool_))
    if prepared.augment == "pad_crop_flip":
        u = uniforms(draw, ids, 3)
        reach = np.maximum(1, np.floor(sizes * SHIFT))
        corners = np.floor(u[:, :2] * (2 * reach + 1)) - reach
        return Views(np.concatenate([corners, sizes], axis=1), u[:, 2] < 0.5)
    u = uniforms(draw, ids, 1 + 4 * TRIES)
    return Views(_random_parts(sizes, u[:, 1:].reshape(-1, TRIES, 4)), u[:, 0] < 0.5)


def uniforms(draw: tuple[int, int], ids: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """[b, count] numbers in [0, 1), determined by seed, epoch and sample.

    The generator is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
    generators"), because it is a function of a counter and works on whole arrays.
    """
    seed, epoch = draw
    with np.errstate(over="ignore"):
        key = _mix(_mix(np.uint64(seed) + _GOLDEN) + np.uint64(epoch))
        of_sample = _mix(key + ids.astype(np.uint64)[:, None] * _GOLDEN)
        bits = _mix(of_sample + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def _whole(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(sizes.shape), sizes], axis=1)


def _centre(sizes: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """Boxes [b, 4] of the square centre crops: a crop's side becomes `size` when the shorter side
    of its image is resized to 256 / 224 * `size`."""
    side = sizes.min(axis=1, keepdims=True) * (size / round(size * SHORT_SIDE))
    return np.concatenate([(sizes - side) / 2, side, side], axis=1)


def _random_parts(sizes: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Boxes [b, 4]: the first random crop that fits into the image or, if none of TRIES fits, the
    largest centred crop with an aspect ratio within RATIO."""
    width, height = (sizes[:, i, None].astype(np.float64) for i in (0, 1))
    area = width * height * (SCALE[0] + u[..., 0] * (SCALE[1] - SCALE[0]))
    low, high = np.log(RATIO)
    ratio = np.exp(low + u[..., 1] * (high - low))
    w, h = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (w > 0) & (h > 0) & (w <= width) & (h <= height)
    first = fits.argmax(axis=1)
    row = np.arange(len(sizes))
    left, top = np.floor(u[..., 2] * (width - w + 1)), np.floor(u[..., 3] * (height - h + 1))
    chosen = np.stack([part[row, first] for part in (left, top, w, h)], axis=1)
    return np.where(fits.any(axis=1, keepdims=True), chosen, _middle(width[:, 0], height[:, 0]))


def _middle(width: NDArray[np.float64], height: NDArray[np.float64]) -> NDArray[np.float64]:
    w = np.minimum(width, np.rint(height * RATIO[1]))
    h = np.minimum(height, np.rint(width / RATIO[0]))
    return np.stack([(width - w) // 2, (height - h) // 2, w, h], axis=1)
