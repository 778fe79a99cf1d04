"""What an encoded image is, read from its header and its last bytes: nothing is decoded.

JPEG: ITU-T T.81, B.2.2 (frame header). PNG: https://www.w3.org/TR/png-3/#11IHDR. Pillow reads the
headers of OTHERS.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Literal

from PIL import Image

OTHERS = ("WEBP", "BMP", "GIF", "TIFF")
"""Formats that all loaders decode by Pillow; of a file with several images, the first is used."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND\xae\x42\x60\x82"
_JPEG_END = b"\xff\xd9"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame; C4, C8 and CC among them mean something else."""
_BARE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers without a length."""


@dataclass(frozen=True)
class Header:
    """width, height: pixels; channels as stored; bits of each channel."""

    kind: Literal["jpeg", "png", "other"]
    width: int
    height: int
    channels: int
    bits: int
    frame: int = 0
    """Where a JPEG's frame header begins, in bytes."""

    @property
    def plain(self) -> bool:
        """Whether all decoders read it alike: 8 bits, grey or RGB. CMYK, 16 bits and transparency
        are not plain."""
        return self.kind != "other" and self.bits == 8 and self.channels in (1, 3)


def read_header(data: bytes) -> Header:
    """The header of a whole JPEG or PNG, or of one of OTHERS. Raises ValueError, with the reason,
    for anything else.

    An image without its end marker is refused here, as decoders differ: Pillow refuses such a JPEG
    and reads such a PNG, and a decoder that reads a part of a JPEG may not notice.
    """
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    if data.startswith(_PNG):
        return _png(data)
    return _other(data)


def _other(data: bytes) -> Header:
    try:
        with Image.open(io.BytesIO(data), formats=OTHERS) as image:
            channels = 1 if image.mode in ("1", "L") or image.mode.startswith("I") else 3
            return Header("other", image.width, image.height, channels, 8)
    except Exception as error:  # Pillow's readers raise many types
        known = ", ".join(("JPEG", "PNG", *OTHERS))
        raise ValueError(f"none of {known}: it begins with {data[:8]!r}") from error


def _png(data: bytes) -> Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise ValueError("a PNG without its header")
    width, height, bits, colour = struct.unpack(">IIBB", data[16:26])
    if colour not in _PNG_CHANNELS or not width or not height:
        raise ValueError("a PNG with a damaged header")
    if data.rfind(_PNG_END) < 0:
        raise ValueError("a PNG cut short: it has no end")
    # a palette's entries have 8 bits, however many its indices have; it is not plain
    channels = 4 if colour == 3 else _PNG_CHANNELS[colour]
    return Header("png", width, height, channels, bits)


def _jpeg(data: bytes) -> Header:
    at, end = 2, len(data)
    while at + 4 <= end:
        if data[at] != 0xFF:
            raise ValueError(f"a JPEG with a damaged segment at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes may precede a marker
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if marker in _FRAMES and at + 10 <= end:
            bits, height, width, channels = struct.unpack_from(">BHHB", data, at + 4)
            if not width or not height or channels not in (1, 3, 4):
                raise ValueError("a JPEG with a damaged frame header")
            # searched after the frame header: a thumbnail before it has an end marker too
            if data.rfind(_JPEG_END, at) < 0:
                raise ValueError("a JPEG cut short: it has no end")
            return Header("jpeg", width, height, channels, bits, frame=at)
        if marker in (0xD9, 0xDA) or length < 2:
            break
        at += 2 + length
    raise ValueError("a JPEG without a frame header: cut short, or damaged")
