"""Pictures of synthetic data: sample i of a split depends only on the seed, the split and i."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysuite.data.prepared import Split
from raysuite.data.synthesis.synthetic_set import SyntheticSet

FIELDS = 6
"""The number of noise fields; a picture combines random cuts of two of them."""

_VARIANCE = np.array([0.2175, 0.0188, 0.0045])
_DIRECTION = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
"""Principal components of ImageNet's RGB values, as columns: brightness, blue-yellow, red-green.
Krizhevsky et al. 2012, section 4.1; numbers from fb.resnet.torch,
https://github.com/facebookarchive/fb.resnet.torch/blob/master/datasets/imagenet.lua"""

_STEP = 64
"""Values are rounded to multiples of 1/64, so that pixels are the same even if another processor's
Fourier transform rounds differently."""


@cache
def fields(side: int) -> list[NDArray[np.float32]]:
    """FIELDS noise images [side, side, 3] with mean 0 and variance 1 (averaged over channels).

    They are the same for all seeds. The seed decides which parts are cut from them.
    """
    generator = np.random.Generator(np.random.PCG64(20_120_930))
    return [_colour(generator, side) for _ in range(FIELDS)]


def field_side(longest: int) -> int:
    """The side, in pixels, of the noise fields for pictures whose longer side has `longest` pixels.
    It is at least 1.5 times `longest`, and a multiple of 256 (for the FFT)."""
    return 256 * max(1, -(-3 * longest // (2 * 256)))


def _colour(generator: np.random.Generator, side: int) -> NDArray[np.float32]:
    components = np.stack([_grey(generator, side) for _ in range(3)], axis=-1)
    scale = np.sqrt(3 * _VARIANCE / _VARIANCE.sum())
    mixed = sum(components[..., [each]] * (scale[each] * _DIRECTION[:, each]) for each in range(3))
    rounded: NDArray[np.float32] = (np.round(mixed * _STEP) / _STEP).astype(np.float32)
    return rounded


def _grey(generator: np.random.Generator, side: int) -> NDArray[np.float64]:
    """Gaussian noise [side, side], filtered to an amplitude of 1/f; mean 0, variance 1."""
    rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf  # makes the mean 0
    noise = np.fft.rfft2(generator.standard_normal((side, side)))
    field = np.fft.irfft2(noise / frequency, s=(side, side))
    scaled: NDArray[np.float64] = field / field.std()
    return scaled


Pixels = NDArray[np.uint8]

VERSION = 1
"""Increased whenever pictures change."""

_LABELS, _PICTURES, _PATTERNS = range(3)
"""The first number of a generator's seed, so that labels, pictures and patterns are drawn from
different random numbers."""

_CONTRAST = (30.0, 55.0)
"""Range of the standard deviation of the sum of the two fields; pixels are from 0 to 255."""
_BRIGHTNESS = (95.0, 150.0)
_PATTERN = (0.1, 0.6)
"""Range of the factor by which the class's pattern is multiplied in a picture."""
_PATTERN_SIDE = 32
_WAVES = 3
_UPRIGHT_SHARE = 0.25
_STRIPE = 64
"""Number of rows that are computed at once."""


class Painter:
    def __init__(self, synthetic: SyntheticSet) -> None:
        self._of = synthetic

    def label(self, split: Split, sample: int) -> int:
        """The label, from 0. A block of `classes` samples has each class once, in random order."""
        block, place = divmod(sample, self._of.classes)
        return int(_order(self._of.seed, split == "val", block, self._of.classes)[place])

    def picture(self, split: Split, sample: int) -> tuple[Pixels, int]:
        """Pixels [height, width, channels] and the label."""
        of = self._of
        label = self.label(split, sample)
        generator = np.random.default_rng([_PICTURES, of.seed, split == "val", sample])
        upright = of.upright and generator.random() < _UPRIGHT_SHARE
        height, width = (of.width, of.height) if upright else (of.height, of.width)
        if of.content == "noise":
            noise = np.frombuffer(generator.bytes(height * width * of.channels), np.uint8)
            return noise.reshape(height, width, of.channels), label
        if of.name == "mnist":
            return _digit(generator, label, split, width), label
        return self._natural(generator, label, height, width), label

    def _natural(self, draw: np.random.Generator, label: int, height: int, width: int) -> Pixels:
        """The sum of cuts from two noise fields and the pattern of the class."""
        side = field_side(max(self._of.width, self._of.height))
        contrast, share = draw.uniform(*_CONTRAST), draw.uniform(0.2, 0.8)  # share of the variance
        weights = contrast * np.sqrt([share, 1 - share], dtype=np.float32)
        cuts = []
        for field in draw.choice(FIELDS, 2, replace=False):
            top, left = draw.integers(0, side - height), draw.integers(0, side - width)
            cuts.append(fields(side)[field][top : top + height, left : left + width])
        strength = draw.uniform(*_PATTERN)
        pattern = np.asarray(
            Image.fromarray(_pattern(label)).resize((width, height), Image.Resampling.BILINEAR)
        )
        # a pattern's mean is 128
        level = np.float32(draw.uniform(*_BRIGHTNESS) - 128 * strength)
        picture = np.empty((height, width, self._of.channels), np.uint8)
        for first in range(0, height, _STRIPE):  # keeps temporary arrays small
            rows = slice(first, first + _STRIPE)
            stripe = cuts[0][rows] * weights[0]
            stripe += cuts[1][rows] * weights[1]
            stripe += pattern[rows] * np.float32(strength)
            stripe += level
            picture[rows] = np.clip(stripe, 0, 255, out=stripe)
        return picture


@lru_cache(maxsize=4)
def _order(seed: int, val: bool, block: int, classes: int) -> NDArray[np.int64]:
    draw = np.random.default_rng([_LABELS, seed, val, block])
    order: NDArray[np.int64] = draw.permutation(classes)
    return order


@lru_cache(maxsize=1000)
def _pattern(label: int) -> Pixels:
    """The pattern of a class, [32, 32, 3] with mean 128: a tint, and waves of one to four cycles.

    The pattern is the same for every seed. A linear model can learn the waves at their positions. A
    convolutional model can also learn their direction, length and colour at any position.
    """
    draw = np.random.default_rng([_PATTERNS, label])
    place = (np.arange(_PATTERN_SIDE) + 0.5) / _PATTERN_SIDE
    pattern = np.full((_PATTERN_SIDE, _PATTERN_SIDE, 3), 128.0)
    pattern += 14 * _direction(draw)
    for _ in range(_WAVES):
        cycles, angle, phase = draw.uniform(1, 4), draw.uniform(0, np.pi), draw.uniform(0, 1)
        rows, columns = place[:, None] * np.sin(angle), place[None, :] * np.cos(angle)
        wave = np.cos(2 * np.pi * (cycles * (rows + columns) + phase))
        pattern += 26 * wave[..., None] * _direction(draw)
    rounded: Pixels = np.clip(np.round(pattern), 0, 255).astype(np.uint8)
    return rounded


def _direction(draw: np.random.Generator) -> NDArray[np.float64]:
    """A colour: a random vector of length 1."""
    vector = draw.standard_normal(3)
    unit: NDArray[np.float64] = vector / np.linalg.norm(vector)
    return unit


def _digit(draw: np.random.Generator, label: int, split: Split, side: int) -> Pixels:
    """One of scikit-learn's scans of the digit, slightly distorted: [side, side, 1].

    The digit takes up about 20/28 of the side, as in MNIST. train and val use different scans.
    """
    scans = _scans()[label]
    kept = scans[::5] if split == "val" else [scan for i, scan in enumerate(scans) if i % 5]
    scan = kept[draw.integers(len(kept))]
    angle, shear = draw.uniform(-0.2, 0.2), draw.uniform(-0.2, 0.2)
    zoom = scan.width / (side * 20 / 28 * draw.uniform(0.9, 1.1))
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    shift = draw.uniform(-0.05, 0.05, 2) * scan.width
    centre, middle = side / 2, scan.width / 2
    rows = [(cos, -sin + shear * zoom), (sin, cos)]  # maps the picture's positions to the scan's
    matrix: list[float] = []
    for (a, b), moved in zip(rows, shift, strict=True):
        matrix += [a, b, middle + moved - (a + b) * centre]
    drawn = scan.transform(
        (side, side), Image.Transform.AFFINE, tuple(matrix), Image.Resampling.BICUBIC
    )
    return np.asarray(drawn)[..., None]


@cache
def _scans() -> list[list[Image.Image]]:
    """scikit-learn's digits by class: 8 x 8 scans with values from 0 to 255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    # makes strokes thin, as in MNIST: pale pixels at the edge of a stroke become black
    levels = np.clip((digits.images - 4) * (255 / 12), 0, 255).astype(np.uint8)
    return [
        [Image.fromarray(scan) for scan in levels[digits.target == label]] for label in range(10)
    ]
