"""What is told of an image before it is decoded, held against Pillow, which decodes it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from raysuite.data.header import read_header
from raysuite.data.pixels import decode
from raysuite.errors import DataError

WIDTH, HEIGHT = 80, 60


def encoded(form: str, mode: str = "RGB", **options: object) -> bytes:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.convert(mode).save(buffer, form, **options)
    return buffer.getvalue()


def thumbnailed() -> bytes:
    """A JPEG with a whole smaller JPEG in its EXIF data, as cameras write them."""
    exif = Image.Exif()
    exif[0x927C] = encoded("JPEG")
    return encoded("JPEG", exif=exif)


WHOLE = {
    "jpeg": encoded("JPEG"),
    "progressive": encoded("JPEG", progressive=True),
    "thumbnail": thumbnailed(),
    "grey": encoded("JPEG", "L"),
    "cmyk": encoded("JPEG", "CMYK"),
    "png": encoded("PNG"),
    "palette": encoded("PNG", "P"),
    "transparent": encoded("PNG", "RGBA"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_images_have_their_size(name: str) -> None:
    for data in (WHOLE[name], WHOLE[name] + b"\0" * 100):  # some writers pad
        header = read_header(data)
        assert (header.width, header.height) == (WIDTH, HEIGHT)
        assert decode(data, 3, "here").shape == (HEIGHT, WIDTH, 3)
        assert header.plain == (name not in ("cmyk", "palette", "transparent"))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_an_image_cut_short_is_no_image(name: str, share: float) -> None:
    data = WHOLE[name]
    with pytest.raises(ValueError, match=r"JPEG|PNG"):
        read_header(data[: min(len(data) - 1, int(share * len(data)))])


def test_what_pillow_refuses_as_cut_short_is_refused_here() -> None:
    data = WHOLE["jpeg"]
    for end in range(0, len(data), 7):
        with pytest.raises(DataError, match="here: not a readable image"):
            decode(data[:end], 3, "here")
        with pytest.raises(ValueError, match=r"JPEG"):
            read_header(data[:end])
