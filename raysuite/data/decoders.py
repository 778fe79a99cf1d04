"""Decode a crop of an image with libjpeg-turbo, in less time than the reference decoder
(`pixels.decode`), and, except in `shrunk_from`, to the same pixels.

For a JPEG, `crop.c` decodes only the crop's columns and rows, and can resize them at the same time.
It is compiled on first use, into raysuite's cache. Without a C compiler or libjpeg-turbo's header,
simplejpeg decodes all columns, from the first row of the image to the last row of the crop. If
libjpeg-turbo fails, the reference decoder is used, because its messages name the error.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from raysuite.compiled import loaded
from raysuite.data.base import Sample
from raysuite.data.header import JPEG, Header
from raysuite.data.pixels import Part, cut_out, decode, header_of, touched
from raysuite.spec.datasets import cache_dir

_SEQUENTIAL = (0xC0, 0xC1)
"""Markers of sequential frames (ITU-T T.81, table B.1). If such a frame has one scan, its rows are
stored from top to bottom. In progressive frames, even the first row depends on the last bytes."""
_START_OF_SCAN = 0xDA
_BLOCK = 8
"""Rows and columns of a DCT block."""
_LEAST_SHRINKING = 2
"""The least factor by which images are shrunk while decoding. Smaller factors save no time, because
libjpeg-turbo's DCTs of 5 to 7 rows are slow."""

_scratch = threading.local()


def cut_from(
    sample: Sample, channels: int, box: NDArray[np.float64], place: str
) -> tuple[NDArray[np.uint8], Part]:
    """The result of `cut_out(decode(sample, channels, place), box)`, with fewer pixels decoded.

    The next call in the same thread may overwrite the returned pixels. Raises the errors of
    `decode`.
    """
    crop, header = _library(), _simple(sample, channels, place)
    if crop is not None and header is not None:
        assert isinstance(sample, bytes)
        found = _cropped(crop, sample, header, channels, box)
        if found is not None:
            return found
    return cut_out(_rows(sample, channels, math.ceil(box[1] + box[3]), place), box)


def resized_from(
    sample: Sample, box: NDArray[np.float64], mirrored: bool, out: NDArray[np.uint8], place: str
) -> bool:
    """Decode `box`, resize it to `out` [size, size, C], mirror it on request, and return True. The
    pixels equal those of `cut_from` followed by `rendering.fit_into`. Rows are resized right after
    decoding, while they are in the CPU cache.

    Return False, with undefined content in `out`, if crop.c is not compiled or fails, if the CPU
    has no AVX2, if the sample is not a plain JPEG (`_simple`), if the box does not consist of whole
    pixels inside the image, or if `out` is not RGB or not contiguous. Raises the errors of
    `decode`.
    """
    crop, header = _library(), _simple(sample, out.shape[2], place)
    left, top, width, height = box.tolist()
    edges = [left, top, left + width, top + height]
    whole = np.array(edges, np.int32)
    if crop is None or header is None or min(left, top) < 0 or whole.tolist() != edges:
        return False
    if edges[2] > header.width or edges[3] > header.height or not out.flags.c_contiguous:
        return False
    size, _, channels = out.shape
    arguments = channels, whole.ctypes.data, size, mirrored, out.ctypes.data, out.size
    return not crop(sample, len(sample), *arguments)


def _cropped(
    crop: Any, data: bytes, header: Header, channels: int, box: NDArray[np.float64]
) -> tuple[NDArray[np.uint8], Part] | None:
    """The result of `cut_from`; None if the box begins at the image's first row and contains all
    columns (decoding only the crop would then save nothing), if the box is outside the image, or if
    decoding fails."""
    x0, y0, x1, y1 = touched(box)
    top, bottom = max(0, y0), min(header.height, y1)
    left, right = max(0, x0), min(header.width, x1)
    is_whole = top == 0 and (left, right) == (0, header.width)
    if is_whole or top >= bottom or left >= right:
        return None
    edges = np.array([left, top, right, bottom], np.int32)
    shape = bottom - top, right - left, channels
    buffer = _buffer(math.prod(shape))
    whereto = buffer.ctypes.data, buffer.size
    if crop(data, len(data), channels, edges.ctypes.data, 0, False, *whereto):
        return None
    pixels = buffer[: math.prod(shape)].reshape(shape)
    return cut_out(pixels, box, (left, top))


@cache
def _library() -> Any:
    """The function `raysuite_crop` of crop.c, or None if it cannot be compiled."""
    library = loaded(Path(__file__).with_name("crop.c"), cache_dir(), "-O3", "-ljpeg")
    if library is None:
        return None
    crop = library.raysuite_crop
    crop.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    crop.argtypes += [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    crop.argtypes += [ctypes.c_void_p, ctypes.c_size_t]
    return crop


def decode_whole(sample: Sample, channels: int, place: str) -> NDArray[np.uint8]:
    """The result of `decode(sample, channels, place)`. The next call in the same thread may
    overwrite it. Raises the errors of `decode`."""
    return _rows(sample, channels, sys.maxsize, place)


def shrinks(box: NDArray[np.float64], size: int) -> bool:
    """Whether `box` is large enough for `shrunk_from` to decode it at a lower resolution."""
    return bool(min(box[2], box[3]) >= _LEAST_SHRINKING * size)


def shrunk_from(
    sample: Sample, channels: int, box: NDArray[np.float64], size: int, place: str
) -> tuple[NDArray[np.uint8], Part]:
    """Like `cut_from`, but decode at 1/2 to 1/8 of the resolution if each side of `box` then still
    has at least `size` pixels. This is faster, because the DCT blocks are decoded to fewer pixels,
    but the pixels differ from those of the reference decoder."""
    header = _simple(sample, channels, place)
    if not shrinks(box, size) or header is None:
        return cut_from(sample, channels, box, place)
    times = min(box[2], box[3]) / size
    try:
        pixels = simplejpeg.decode_jpeg(
            sample,
            _COLOURS[channels],
            min_height=math.ceil(header.height / times),
            min_width=math.ceil(header.width / times),
            min_factor=_LEAST_SHRINKING,
        )
    except ValueError:
        return cut_from(sample, channels, box, place)
    scale = round(_BLOCK * pixels.shape[1] / header.width) / _BLOCK
    return cut_out(pixels, box * scale)


_COLOURS = {1: "GRAY", 3: "RGB"}


def _rows(sample: Sample, channels: int, bottom: int, place: str) -> NDArray[np.uint8]:
    """Decode at least the rows above `bottom`: [rows, W, channels]."""
    header = _simple(sample, channels, place)
    if header is None:
        return decode(sample, channels, place)
    assert isinstance(sample, bytes)
    height = _height_needed(sample, header, bottom)
    shortened = height < header.height
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            _shortened(sample, header, height) if shortened else sample,
            _COLOURS[channels],
            buffer=_buffer(height * header.width * channels),
            # strict mode refuses a file with data after its last row
            strict=not shortened,
        )
    except ValueError:
        return decode(sample, channels, place)
    return pixels


def _simple(sample: Sample, channels: int, place: str) -> Header | None:
    """The header of a JPEG whose pixels are the same with all decoders; None for anything else.

    None also for a colour JPEG that is decoded to grey: Pillow computes grey from RGB, and
    libjpeg-turbo uses the luma.
    """
    if not isinstance(sample, bytes) or not sample.startswith(JPEG):
        return None
    header = header_of(sample, place)
    return header if header.plain and header.channels <= channels else None


def _height_needed(data: bytes, header: Header, bottom: int) -> int:
    """The number of rows to decode so that all rows above `bottom` are correct."""
    frame = header.frame
    if data[frame + 1] not in _SEQUENTIAL or not _one_scan(data, header):
        return header.height
    sampling = data[frame + 11 : frame + 10 + 3 * header.channels : 3]
    unit = _BLOCK * max(vertical & 15 for vertical in sampling)
    # plus one unit: chroma interpolation uses the row below
    return min(header.height, (math.ceil(bottom / unit) + 1) * unit)


def _one_scan(data: bytes, header: Header) -> bool:
    """Whether the first scan contains all channels."""
    at = header.frame
    while at + 4 < len(data) and data[at] == 0xFF:
        if data[at + 1] == _START_OF_SCAN:
            return data[at + 4] == header.channels
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False


def _shortened(data: bytes, header: Header, height: int) -> bytes:
    """A copy of the file with a header that states `height` rows, so that decoders stop there."""
    at = header.frame + 5
    return b"".join((data[:at], height.to_bytes(2, "big"), data[at + 2 :]))


def _buffer(size: int) -> NDArray[np.uint8]:
    """This thread's buffer for pixels. It is reused, because allocating one for each image takes a
    tenth of the decoding time."""
    held: NDArray[np.uint8] | None = getattr(_scratch, "pixels", None)
    if held is None or held.size < size:
        _scratch.pixels = held = np.empty(size, np.uint8)
    return held
