"""Random fields with the statistics of photographs, from which pictures are cut.

The amplitude of a natural image falls as 1/f with spatial frequency: D. J. Field, "Relations
between the statistics of natural images and the response properties of cortical cells", J. Opt.
Soc. Am. A 4, 1987; A. van der Schaaf and J. H. van Hateren, "Modelling the power spectra of
natural images", Vision Research 36, 1996 (power f^-1.88, amplitude f^-0.94, on average). Phases
are random here: there are no edges, so that a JPEG of equal quality is larger than a photograph's.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

FIELDS = 6
"""Two of them, each cut anywhere, make a picture."""

_VARIANCE = np.array([0.2175, 0.0188, 0.0045])
_DIRECTION = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
"""Principal components of ImageNet's RGB values: brightness, then blue-yellow, then red-green, as
columns. Krizhevsky et al. 2012, section 4.1; the figures are those of fb.resnet.torch,
https://github.com/facebookarchive/fb.resnet.torch/blob/master/datasets/imagenet.lua"""

_STEP = 64
"""Values are multiples of 1/64: so a Fourier transform that rounds otherwise on another processor
leads to the same pixels."""


@cache
def fields(side: int) -> list[NDArray[np.float32]]:
    """FIELDS fields [side, side, 3], mean 0; over the channels the mean variance is 1.

    Always the same ones: what differs between pictures and seeds is what is cut from them.
    """
    generator = np.random.Generator(np.random.PCG64(20_120_930))
    return [_colour(generator, side) for _ in range(FIELDS)]


def field_side(longest: int) -> int:
    """The side of the fields from which pictures of `longest` pixels are cut: half as much again
    and more, in steps that suit the Fourier transform."""
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
    frequency[0, 0] = np.inf  # no mean
    noise = np.fft.rfft2(generator.standard_normal((side, side)))
    field = np.fft.irfft2(noise / frequency, s=(side, side))
    scaled: NDArray[np.float64] = field / field.std()
    return scaled
