"""Encoded image -> pixels, with Pillow."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysuite.data.prepared import Prepared
from raysuite.data.source import Source
from raysuite.errors import DataError

_FORMATS = ("PNG", "JPEG")
"""What Pillow may take a file for; the others would only make it slower to refuse."""


def decode(source: Source, sample: int, prepared: Prepared) -> tuple[NDArray[np.uint8], int]:
    """A sample's pixels, [size, size, channels] uint8, grey or RGB, and its label.

    Resized, where the set asks for it, without keeping the aspect: bilinear, antialiased.
    Raises DataError, with the sample's place, for anything but a whole image of the right size.
    """
    size, channels = prepared.facts.image_size, prepared.facts.channels
    data, label = source.read(sample)
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS).convert(
            "L" if channels == 1 else "RGB"
        )
    except Exception as error:  # Pillow's decoders raise whatever they meet
        raise DataError(
            f"{source.place(sample)}: not a readable image ({type(error).__name__}: {error}); "
            "valid are whole PNG and JPEG files; replace or remove it"
        ) from error
    if image.size != (size, size):
        if not prepared.resize:
            raise DataError(
                f"{source.place(sample)}: the image has {image.width} x {image.height} pixels; "
                f"expected are {size} x {size}"
            )
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size, size, channels), label
