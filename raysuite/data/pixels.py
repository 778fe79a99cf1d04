"""Decode images with Pillow, the reference for other decoders."""

from __future__ import annotations

import io
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysuite.data.base import Sample
from raysuite.data.header import (
    OTHERS,
    PNG,
    DepthError,
    Header,
    bare,
    check_depth,
    check_scans,
    check_tags,
    read_header,
)
from raysuite.errors import DataError

_FORMATS = ("PNG", "JPEG", *OTHERS)
"""The formats that Pillow tries. More formats would only delay the error for other files."""
_MODES = {1: "L", 3: "RGB"}
_VIA = {"LAB": "RGB", "La": "LA"}
"""Modes that Pillow cannot convert to grey directly."""
_ORIENTATION = 274
_BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""Orientation -> the transform that undoes Pillow's rotation or mirroring of a TIFF on loading."""

Part = tuple[float, float, float, float]
"""The left, top, right and bottom edge of a part of an image, in pixels."""


def size_of(sample: Sample, place: str) -> tuple[int, int]:
    """Width and height in pixels; for an encoded image, only the header is read.

    Raises DataError, which names `place`, if the sample is not an image.
    """
    if isinstance(sample, bytes):
        header = header_of(sample, place)
        return header.width, header.height
    return sample.shape[1], sample.shape[0]


def header_of(data: bytes, place: str) -> Header:
    """The header of an image file. Raises DataError, which names `place`, if it is damaged."""
    try:
        return read_header(data)
    except ValueError as error:
        raise unreadable(place, error) from error


def decode(sample: Sample, channels: int, place: str) -> NDArray[np.uint8]:
    """All pixels of a sample: [H, W, channels], grey or RGB.

    Grey becomes RGB by repetition, and RGB becomes grey by ITU-R 601 luma; `of_image` describes
    other conversions. Raises DataError, which names `place`, for anything but a whole image.
    """
    if isinstance(sample, bytes):
        try:
            read = bare(sample) if sample.startswith(PNG) else sample
            return of_image(Image.open(io.BytesIO(read), formats=_FORMATS), channels)
        except Exception as error:  # Pillow's decoders raise many kinds of errors
            raise unreadable(place, error) from error
    if sample.shape[2] == channels:
        return sample
    return _shaped(np.asarray(as_image(sample).convert(_MODES[channels])))


def check_whole(sample: Sample, place: str) -> None:
    """Decode a sample. Raises the errors of `decode`. Also raises DataError for a PNG that lacks
    rows or the checksum of its pixels, which Pillow accepts and other decoders refuse."""
    decode(sample, 3, place)
    if isinstance(sample, bytes) and sample.startswith(PNG):
        try:
            check_scans(sample)
        except (ValueError, zlib.error) as error:
            raise unreadable(place, error) from error


def of_image(image: Image.Image, channels: int) -> NDArray[np.uint8]:
    """The pixels of a Pillow image: [H, W, channels].

    CMYK is converted by Pillow, and transparency is dropped. The orientation tag is ignored:
    Pillow rotates or mirrors only TIFFs by it, on loading, and this function undoes that. Raises
    DepthError for unsupported pixels, and Pillow's errors.
    """
    turned = None
    if image.format == "TIFF":
        check_tags(getattr(image, "tag_v2", {}))
        turned = image.getexif().get(_ORIENTATION)  # the tag must be read before `load`
    image.load()
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(eight_bits(np.asarray(image)))
    if image.mode in _VIA:
        image = image.convert(_VIA[image.mode])
    if turned in _BACK:
        image = image.transpose(_BACK[turned])
    image.info.pop("transparency", None)  # else Pillow warns if a palette has it
    return _shaped(np.asarray(image.convert(_MODES[channels])))


def eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """The upper 8 bits of 16-bit pixels; 8-bit pixels unchanged. Raises DepthError for other
    depths."""
    check_depth(pixels.dtype.kind, 8 * pixels.dtype.itemsize)
    return pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)


def encode(pixels: NDArray[np.uint8], quality: int | None = None, level: int = 1) -> bytes:
    """Pixels [H, W, C] or [H, W] as a JPEG of the given quality, or as a PNG of the given
    compression level (1 to 9)."""
    buffer = io.BytesIO()
    if quality is None:
        as_image(pixels).save(buffer, "PNG", compress_level=level)
    else:
        as_image(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def as_image(pixels: NDArray[np.uint8]) -> Image.Image:
    """The Pillow image of pixels [H, W, C] or [H, W]."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels)


def fit(cut: NDArray[np.uint8], part: Part, size: int) -> NDArray[np.uint8]:
    """The `part` of `cut` [H, W, C], resized to [size, size, C], bilinear with antialiasing."""
    if cut.shape[:2] == (size, size) and part == whole(cut):
        return cut
    resized = as_image(cut).resize((size, size), Image.Resampling.BILINEAR, box=part)
    return _shaped(np.asarray(resized))


def whole(pixels: NDArray[np.uint8]) -> Part:
    """The Part that covers all of `pixels` [H, W, C]."""
    return (0.0, 0.0, float(pixels.shape[1]), float(pixels.shape[0]))


def touched(box: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """The pixels that `box` touches: first column, first row, end column, end row (exclusive)."""
    left, top, width, height = box.tolist()
    return math.floor(left), math.floor(top), math.ceil(left + width), math.ceil(top + height)


def cut_out(
    pixels: NDArray[np.uint8], box: NDArray[np.float64], begin: tuple[int, int] = (0, 0)
) -> tuple[NDArray[np.uint8], Part]:
    """The pixels that `box` touches (0 outside the image), and the box relative to them.

    `begin`: the column and row of the image at which `pixels` begin.
    """
    x0, y0, x1, y1 = touched(box)
    column, row = begin
    inner = pixels[max(0, y0) - row : y1 - row, max(0, x0) - column : x1 - column]
    if inner.shape[:2] != (y1 - y0, x1 - x0):
        padded = np.zeros((y1 - y0, x1 - x0, pixels.shape[2]), np.uint8)
        row, column = max(0, -y0), max(0, -x0)
        padded[row : row + inner.shape[0], column : column + inner.shape[1]] = inner
        inner = padded
    left, top, width, height = box.tolist()
    return inner, (left - x0, top - y0, left - x0 + width, top - y0 + height)


def copy_by_channel(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Copy `pixels` [H, W, C] to `out`, channel by channel. For mirrored pixels, this is several
    times as fast as `out[...] = pixels`."""
    for channel in range(pixels.shape[2]):
        out[:, :, channel] = pixels[:, :, channel]


def unreadable(place: str, error: Exception) -> DataError:
    """The DataError for an image that cannot be read."""
    if isinstance(error, DepthError):
        return DataError(f"{place}: {error}")
    return DataError(
        f"{place}: not a readable image ({type(error).__name__}: {error}); valid: whole "
        f"{', '.join(_FORMATS)} files; replace or remove it, or set data.bad_samples to skip"
    )


def _shaped(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels if pixels.ndim == 3 else pixels[:, :, None]
