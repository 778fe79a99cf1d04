"""Read the kind and size of an encoded image without decoding its pixels.

Sources: ITU-T T.81, B.2.2 (frame header of JPEG); https://www.w3.org/TR/png-3/#11IHDR; TIFF 6.0,
sections 3 to 8 and 19. Pillow reads the headers of other formats (OTHERS).
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

OTHERS = ("WEBP", "BMP", "GIF", "TIFF")
"""Formats that all loaders decode with Pillow. If a file has several images, the first is used."""
MOST_PIXELS = 178_956_970
"""The largest number of pixels that Pillow accepts by default: 2 * PIL.Image.MAX_IMAGE_PIXELS. It
is not read from Pillow, because a user's own data set may change Pillow's limit."""
PNG = b"\x89PNG\r\n\x1a\n"
_UNREAD = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_AT_ONCE = 1 << 20
"""Upper bound of the bytes that one call decompresses."""
_ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
"""First column, first row, column step and row step of each pass of an interlaced PNG:
https://www.w3.org/TR/png-3/#8Interlace."""
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame; C4, C8 and CC have other meanings."""
_BARE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers without a length."""

# Pillow already warns above half the limit.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Header:
    """Width, height and channels as stored; for a palette, the channels of its colours."""

    kind: Literal["jpeg", "png", "other"]
    width: int
    height: int
    channels: int
    plain: bool = False
    """Whether all decoders give the same pixels: True for 8-bit grey and RGB. CMYK, 16 bits,
    palettes, transparency, and lossless and arithmetic-coded JPEGs are not plain."""
    frame: int = 0
    """The offset of a JPEG's frame header, in bytes."""


class DepthError(ValueError):
    """Pixels are not unsigned integers of up to 8 or of 16 bits, or Pillow reads them wrongly."""


_NUMBERS = {"u": "unsigned integers", "i": "signed integers", "f": "floats", "b": "booleans"}
"""NumPy's `dtype.kind` -> its name."""


def check_depth(kind: str, bits: int) -> None:
    """Raise DepthError unless pixels of the kind `kind` (NumPy's `dtype.kind`) and of `bits` bits
    are supported.

    8-bit values are used unchanged, values of fewer bits are scaled to 0..255, and 16-bit values
    are reduced to their upper 8 bits.
    """
    if kind != "u" or bits not in (1, 2, 4, 8, 16):
        raise DepthError(
            f"its pixels are {bits}-bit {_NUMBERS.get(kind, 'numbers of another kind')}; valid: "
            "unsigned integers of up to 8 bits or of 16 bits; convert the files, or scale the "
            "pixels in a data set of your own (docs/how-to/own-data.md)"
        )


def check_tags(tags: Any) -> None:
    """Apply `check_depth` to the tags of a TIFF. Also raises DepthError for 16-bit TIFFs that
    Pillow reads wrongly: those in which 0 is white, or with separate uncompressed channels."""
    bits = tags.get(258, (1,))
    for number in tags.get(339, (1,)):
        check_depth({1: "u", 2: "i", 3: "f"}.get(number, ""), max(bits))
    if max(bits) == 16 and tags.get(262, 0) == 0:
        raise DepthError("a TIFF of 16 bits in which 0 is white; store it with 0 as black")
    if max(bits) == 16 and tags.get(284, 1) == 2 and tags.get(259, 1) == 1:
        raise DepthError(
            "a TIFF of 16 bits whose channels are stored separately; store the channels "
            "interleaved, or compress the TIFF"
        )


def read_header(data: bytes) -> Header:
    """The header of a whole JPEG or PNG, or of an image in a format of OTHERS. Raises ValueError,
    with the reason, for any other data, and for an image of more than MOST_PIXELS pixels.

    Images without an end marker are refused, because decoders differ: Pillow refuses a JPEG without
    its end but reads a PNG without its end, and `crop.c` may not reach the end of a JPEG. A PNG is
    refused if a chunk's checksum is wrong, because Pillow does not verify the checksums of pixels.
    """
    if data.startswith(JPEG):
        header = _jpeg(data)
    elif data.startswith(PNG):
        header = _png(data)
    else:
        header = _other(data)
    if header.width * header.height > MOST_PIXELS:
        raise ValueError(
            f"{header.width} x {header.height} pixels exceed the limit of {MOST_PIXELS:,} pixels "
            "per image"
        )
    return header


def _other(data: bytes) -> Header:
    try:
        tags = _tags(data) if data.startswith(_TIFF) else None
        if tags is not None:
            check_tags(tags)
        with Image.open(io.BytesIO(data), formats=OTHERS) as image:
            channels = 1 if image.mode in ("1", "L") or image.mode.startswith("I") else 3
            # Pillow applies the orientation of a TIFF to its size
            width, height = image.size if tags is None else (tags[256], tags[257])
            return Header("other", width, height, channels)
    except DepthError:
        raise
    except Image.DecompressionBombError as error:
        raise ValueError(f"more than the limit of {MOST_PIXELS:,} pixels per image") from error
    except Exception as error:  # Pillow's readers raise many kinds of errors
        known = ", ".join(("JPEG", "PNG", *OTHERS))
        what = "a TIFF that Pillow cannot read" if data.startswith(_TIFF) else f"none of {known}"
        raise ValueError(f"{what}: it begins with {data[:8]!r}") from error


def _tags(data: bytes) -> ImageFileDirectory_v2:
    """The tags of a TIFF's first image, even if Pillow does not support the image."""
    file = io.BytesIO(data)
    tags = ImageFileDirectory_v2(file.read(16 if data[2] == 43 else 8))
    file.seek(tags.next)
    tags.load(file)
    return tags


def _png(data: bytes) -> Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise ValueError("a PNG without its header")
    width, height, bits, colour = struct.unpack(">IIBB", data[16:26])
    if colour not in _PNG_CHANNELS or not width or not height:
        raise ValueError("a PNG with a damaged header")
    content, transparent = memoryview(data), False
    for name, at, end in _chunks(data):
        if zlib.crc32(content[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise ValueError(f"a PNG with a wrong checksum of {name!r}, the chunk at byte {at}")
        transparent |= name == b"tRNS"
    # palette colours have 8 bits, whatever the bits of the indices, and may have transparency
    channels = 3 + transparent if colour == 3 else _PNG_CHANNELS[colour]
    plain = bits == 8 and colour in (0, 2) and not transparent
    return Header("png", width, height, channels, plain)


def bare(data: bytes) -> bytes:
    """A PNG without texts and colour profile: if these are large, Pillow refuses the PNG."""
    spans = [data[at:end] for name, at, end in _chunks(data) if name not in _UNREAD]
    return PNG + b"".join(spans)


def check_scans(data: bytes) -> None:
    """Raise ValueError if the compressed pixels of a PNG lack rows or a checksum, and zlib.error if
    they are damaged or the checksum is wrong. Pillow fills missing rows with black and ignores a
    missing checksum; libpng does not."""
    stream, found = zlib.decompressobj(), 0
    for name, at, end in _chunks(data):
        piece = data[at + 8 : end - 4] if name == b"IDAT" else b""
        while piece:
            found += len(stream.decompress(piece, _AT_ONCE))
            piece = stream.unconsumed_tail
    width, height, bits, colour = struct.unpack(">IIBB", data[16:26])
    depth, wanted = bits * (1 if colour == 3 else _PNG_CHANNELS[colour]), 0
    for left, top, across, down in _ADAM7 if data[28] else ((0, 0, 1, 1),):
        columns, rows = -((left - width) // across), -((top - height) // down)
        wanted += rows * (1 + -(-columns * depth // 8)) if columns > 0 else 0
    if not stream.eof or found < wanted:
        raise ValueError("a PNG whose pixels are cut short")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The name, begin and end of each chunk of a PNG."""
    name, at = b"", len(PNG)
    while name != b"IEND":
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            raise ValueError("a PNG cut short: it has no end")
        name = data[at + 4 : at + 8]
        yield name, at, end
        at = end


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
            # searched after the frame header, as a thumbnail before it also has an end marker
            if data.rfind(_JPEG_END, at) < 0:
                raise ValueError("a JPEG cut short: it has no end")
            check_depth("u", bits)
            plain = bits == 8 and channels in (1, 3) and marker <= 0xC2
            return Header("jpeg", width, height, channels, plain, frame=at)
        if marker in (0xD9, 0xDA) or length < 2:
            break
        at += 2 + length
    raise ValueError("a JPEG without a frame header: cut short, or damaged")
