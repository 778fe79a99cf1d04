"""A person's own map-style data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysuite.data.pixels import decode
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError
from raysuite.layouts.own import open_split


class OwnSource:
    """Samples by `data_set[i]`, each turned into pixels."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        self._name = f"{prepared.data.name}(split={split!r})"
        self._channels = prepared.facts.channels
        self._set = open_split(prepared.data, split)

    def read(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        place = self.place(sample)
        try:
            image, label = self._set[sample]
            number = int(label)
            if float(label) != number:
                raise DataError(f"{place}: its label is {label!r}; expected is a whole number")
            return self._pixels(image, place), number
        except DataError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise DataError(
                f"{place} raised {type(error).__name__}: {error}; expected are an image and its "
                "label; correct it, or set data.bad_samples to skip"
            ) from error

    def place(self, sample: int) -> str:
        return f"{self._name}[{sample}]"

    def file(self, sample: int) -> None:
        return None

    def close(self) -> None:
        pass

    def _pixels(self, image: Any, place: str) -> NDArray[np.uint8]:
        if isinstance(image, bytes | bytearray):
            return decode(bytes(image), self._channels, place)
        if isinstance(image, Image.Image):
            image = np.asarray(image.convert("L" if self._channels == 1 else "RGB"))
        given = np.asarray(image)
        pixels = given[:, :, None] if given.ndim == 2 else given
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
            raise DataError(
                f"{place}: the image is {given.dtype} of shape {list(given.shape)}; valid are a "
                "PIL image, uint8 pixels [H, W], [H, W, 1] or [H, W, 3], and the bytes of a JPEG "
                "or PNG"
            )
        if 0 in pixels.shape:
            raise DataError(f"{place}: the image has no pixels")
        return np.ascontiguousarray(pixels)
