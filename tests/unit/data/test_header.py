"""What is told of an image before it is decoded, held against Pillow, which decodes it."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from raysuite.data import header as headers
from raysuite.data.header import check_scans, read_header
from raysuite.data.pixels import check_whole, decode
from raysuite.errors import DataError
from tests.image_files import png, saved, tiff

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
    "filled": encoded("JPEG").replace(b"\xff\xdb", b"\xff\xff\xff\xdb"),
    "marker alone": encoded("JPEG").replace(b"\xff\xc0", b"\xff\xd0\xff\xc0"),
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


@pytest.mark.parametrize("frame", [b"\xff\xc3", b"\xff\xc9"])
def test_a_lossless_or_arithmetic_jpeg_is_not_plain(frame: bytes) -> None:
    data = WHOLE["jpeg"].replace(b"\xff\xc0", frame)
    assert read_header(WHOLE["jpeg"]).plain
    assert not read_header(data).plain


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


@pytest.mark.parametrize("name", [b"IHDR", b"IDAT", b"IEND"])
def test_a_png_with_a_wrong_checksum_is_no_image(name: bytes) -> None:
    data = bytearray(WHOLE["png"])
    at = data.index(name)
    end = at + 4 + int.from_bytes(data[at - 4 : at], "big")
    data[end] ^= 1
    with pytest.raises(ValueError, match=f"checksum of .*{name.decode()}"):
        read_header(bytes(data))


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "bits"), [(0, 1), (0, 16), (2, 8), (3, 2), (4, 8), (6, 16)])
def test_a_png_whose_pixels_are_cut_short_is_found(
    colour: int, bits: int, interlaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels, compress = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour], zlib.compress
    pixels = np.ones((11, 13, channels), np.uint16 if bits == 16 else np.uint8)
    before = [(b"PLTE", bytes(12))] if colour == 3 else []

    def made(change: Callable[[bytes], bytes]) -> bytes:
        monkeypatch.setattr(zlib, "compress", lambda data, level: change(data))
        return png(pixels, colour, bits, before=before, interlaced=interlaced)

    check_whole(made(compress), "here")
    for change in (
        lambda data: compress(data[:-1]),
        lambda data: compress(data)[:-4],
        lambda data: compress(data)[:-1] + b"\xff",
    ):
        with pytest.raises(DataError, match="here: not a readable image"):
            check_whole(made(change), "here")
        with pytest.raises((ValueError, zlib.error)):  # Pillow finds only a part of a row missing
            check_scans(made(change))


@pytest.mark.parametrize("name", [b"zTXt", b"iCCP"])
def test_a_png_with_a_large_profile_or_text_is_read(name: bytes) -> None:
    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    data = png(pixels, 2, 8, before=[(name, b"k\0\0" + zlib.compress(bytes(2 << 20)))])
    assert read_header(data).plain
    assert np.array_equal(decode(data, 3, "here"), pixels)


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3)])
def test_a_png_with_one_transparent_colour_is_not_plain(colour: int, channels: int) -> None:
    pixels = np.zeros((4, 4, channels), np.uint8)
    assert read_header(png(pixels, colour, 8)).plain
    mark = (b"tRNS", bytes(2 * channels))
    assert not read_header(png(pixels, colour, 8, before=[mark])).plain


def test_a_palette_has_the_channels_that_tensorflow_decodes() -> None:
    indices, palette = np.zeros((4, 4, 1), np.uint8), (b"PLTE", bytes(6))
    assert read_header(png(indices, 3, 1, before=[palette])).channels == 3
    assert read_header(png(indices, 3, 1, before=[palette, (b"tRNS", b"\0")])).channels == 4


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP"])
def test_an_image_beyond_the_limit_is_no_image(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(form)
    assert read_header(data).width == WIDTH
    with monkeypatch.context() as patch:
        patch.setattr(headers, "MOST_PIXELS", WIDTH * HEIGHT)
        assert read_header(data).width == WIDTH
        patch.setattr(headers, "MOST_PIXELS", WIDTH * HEIGHT - 1)
        with pytest.raises(ValueError, match=r"the limit of 4,799 pixels"):
            read_header(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", WIDTH * HEIGHT // 2 - 1)
    if form in ("PNG", "JPEG"):
        assert read_header(data).width == WIDTH
    else:
        with pytest.raises(ValueError, match=r"the limit of 178,956,970 pixels"):
            read_header(data)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_an_orientation_is_not_followed(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = Image.fromarray(np.arange(120 * 3, dtype=np.uint8).reshape(10, 12, 3))
    options = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}.get(form, {})
    plain, tagged = saved(picture, form, **options), saved(picture, form, exif=exif, **options)
    assert np.array_equal(decode(tagged, 3, "here"), decode(plain, 3, "here"))
    assert (read_header(tagged).width, read_header(tagged).height) == (12, 10)


def test_a_tiff_that_no_library_here_knows_has_its_depth_named() -> None:
    for order, big in (("<", False), (">", False), ("<", True)):
        data = tiff(np.zeros((3, 3, 1), np.float64), order=order, big=big)  # type: ignore[arg-type]
        with pytest.raises(headers.DepthError, match="64-bit floats"):
            read_header(data)
