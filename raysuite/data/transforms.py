"""Apply the user's own `data.transform` to each image, after augmentation, before normalisation.

The transform gets a random generator that depends only on seed, epoch and sample. Every loader that
supports transforms therefore delivers the same image, for any number of ranks.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from raysuite import lazy
from raysuite.data.prepared import Prepared
from raysuite.errors import DataError

_load = cache(lazy.load)


def transformed(
    prepared: Prepared,
    image: NDArray[np.uint8],
    sample: int,
    draw: tuple[int, int] | None,
    place: str,
) -> NDArray[np.uint8]:
    """Apply the transform to an image [size, size, C]; without a transform, return the image.

    `draw`: seed and epoch; None in validation, where the transform gets None in place of a
    generator. Raises DataError if the transform raises an exception or changes the shape or dtype;
    `place` says in the message which image it was.
    """
    if prepared.data.transform is None:
        return image
    draws = None
    if draw is not None:
        seed, epoch = draw
        draws = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, sample]))
    try:
        found = np.asarray(_load(prepared.data.transform)(image.copy(), draws))
    except (Exception, SystemExit) as error:  # the user's code may raise any error
        raise DataError(
            f"{place}: data.transform {prepared.data.transform} raised {type(error).__name__}: "
            f"{error}; data.transform is called with a uint8 array of shape {list(image.shape)} "
            "and a numpy.random.Generator (in validation, None)"
        ) from error
    if found.dtype != np.uint8 or found.shape != image.shape:
        raise DataError(
            f"{place}: data.transform {prepared.data.transform} returned {found.dtype} of shape "
            f"{list(found.shape)}; expected uint8 of shape {list(image.shape)}; raysuite applies "
            "mean and std after the transform"
        )
    return found
