"""What a DALI pipeline is fed with: bytes or pixels, and the numbers of each sample's view."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import types
from PIL import Image

from raysuite.data.pixels import decode, header_of
from raysuite.data.prepared import Prepared
from raysuite.data.reading import Read


def encoded(data: bytes, channels: int, place: str) -> NDArray[np.uint8]:
    """The bytes for DALI; images that decoders read differently are converted by ours first."""
    if header_of(data, place).plain:
        return np.frombuffer(data, np.uint8)
    buffer = io.BytesIO()
    pixels = decode(data, channels, place)
    Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).save(
        buffer, "PNG", compress_level=1
    )
    return np.frombuffer(buffer.getvalue(), np.uint8)


KINDS = {
    "corner": (types.DALIDataType.INT32, 1),
    "extent": (types.DALIDataType.INT32, 1),
    "low": (types.DALIDataType.FLOAT, 1),
    "high": (types.DALIDataType.FLOAT, 1),
    "flip": (types.DALIDataType.INT32, 0),
}
"""Type and dimensions of what `cut` gives for each sample."""


def inputs_of(prepared: Prepared) -> list[str]:
    """What of `cut` this set needs."""
    names = ["low", "high"] if prepared.resizes else []
    if prepared.resizes or prepared.augment == "pad_crop_flip":
        names = ["corner", "extent", *names]
    return names if prepared.augment == "none" else [*names, "flip"]


def cut(got: Read) -> dict[str, NDArray[Any]]:
    """Corner and extent of the whole pixels that each view touches, the view within them (all in
    the order height, width), and whether it is mirrored."""
    low = got.views.boxes[:, [1, 0]]
    high = low + got.views.boxes[:, [3, 2]]
    corner = np.floor(low)
    return {
        "corner": np.ascontiguousarray(corner, np.int32),
        "extent": np.ascontiguousarray(np.ceil(high) - corner, np.int32),
        "low": np.ascontiguousarray(low - corner, np.float32),
        "high": np.ascontiguousarray(high - corner, np.float32),
        "flip": got.views.flips.astype(np.int32),
    }
