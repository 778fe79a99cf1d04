"""Pixels of images whose values are known: what is decoded, cut out, resized and written."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from raysuite.data.header import DepthError
from raysuite.data.pixels import (
    as_image,
    check_whole,
    copy_by_channel,
    cut_out,
    decode,
    eight_bits,
    encode,
    fit,
    header_of,
    size_of,
    whole,
)
from raysuite.errors import DataError
from tests.image_files import png, saved, tiff

COLOURS = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[9, 90, 200], [7, 7, 7], [0, 0, 0]]])
COLOURS = COLOURS.astype(np.uint8)  # [2, 3, 3]
GREYS = np.array([[0, 1, 254], [255, 7, 128]], np.uint8)[:, :, None]


def luma(pixels: np.ndarray) -> np.ndarray:
    """ITU-R BT.601."""
    return pixels @ [0.299, 0.587, 0.114]


def test_grey_is_repeated_and_colours_become_their_luma() -> None:
    for given in (GREYS, png(GREYS, 0, 8)):
        assert np.array_equal(decode(given, 1, "here"), GREYS)
        assert np.array_equal(decode(given, 3, "here"), np.repeat(GREYS, 3, axis=2))
    for given in (COLOURS, png(COLOURS, 2, 8)):
        assert np.array_equal(decode(given, 3, "here"), COLOURS)
        grey = decode(given, 1, "here")
        assert grey.shape == (2, 3, 1)
        assert abs(grey[:, :, 0] - luma(COLOURS)).max() <= 0.51
    assert decode(COLOURS, 3, "here") is COLOURS


def test_pixels_of_every_mode_are_those_of_its_definition() -> None:
    sixteen = GREYS.astype(np.uint16) * 256 + 77  # the lower half does not count
    for channels, expected in ((1, GREYS), (3, np.repeat(GREYS, 3, axis=2))):
        for given in (png(sixteen, 0, 16), tiff(sixteen), tiff(sixteen, order=">")):
            assert np.array_equal(decode(given, channels, "here"), expected)
    # a palette of two colours with a transparency each, which is dropped
    palette = [(b"PLTE", bytes([9, 8, 7, 200, 100, 50])), (b"tRNS", bytes([0, 128]))]
    indices = np.array([[0, 1], [1, 0]], np.uint8)[:, :, None]
    found = decode(png(indices, 3, 8, before=palette), 3, "here")
    assert found.tolist() == [[[9, 8, 7], [200, 100, 50]], [[200, 100, 50], [9, 8, 7]]]
    assert decode(png(indices, 3, 8, before=palette), 1, "here").shape == (2, 2, 1)
    # L* of 0 and 100 without a hue, in all channels and by way of RGB where one is wanted
    lab = np.array([[[0, 0, 0], [255, 0, 0]]], np.uint8)
    for channels in (1, 3):
        found = decode(tiff(lab, photometric=8), channels, "here")
        assert found.shape == (1, 2, channels)
        assert abs(found.astype(int) - [[[0], [255]]]).max() <= 1
    clear = Image.fromarray(np.dstack([GREYS, GREYS // 2]), "LA")
    assert np.array_equal(decode(saved(clear, "PNG"), 1, "here"), GREYS)


def test_a_size_is_of_columns_and_rows() -> None:
    assert size_of(COLOURS, "here") == size_of(png(COLOURS, 2, 8), "here") == (3, 2)
    assert header_of(png(COLOURS, 2, 8), "here").channels == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a readable image"),
        (saved(Image.fromarray(COLOURS), "PPM"), "not a readable image"),
        (saved(Image.fromarray(COLOURS), "TGA"), "not a readable image"),
        (png(COLOURS, 2, 8)[:-1], "not a readable image .*cut short"),
        (tiff(np.zeros((2, 3, 1), np.float32)), "its pixels are 32-bit floats; valid:"),
        (
            tiff(np.zeros((2, 3, 1), np.uint16), photometric=0),
            "a TIFF of 16 bits in which 0 is white",
        ),
    ],
)
def test_what_is_no_image_is_named_by_its_place(data: bytes, words: str) -> None:
    for work in (
        lambda: size_of(data, "a place"),
        lambda: decode(data, 3, "a place"),
        lambda: check_whole(data, "a place"),
    ):
        with pytest.raises(DataError, match=f"^a place: {words}") as caught:
            work()
        assert caught.value.__cause__ is not None
    check_whole(COLOURS, "here")


def test_a_file_that_is_written_is_the_picture() -> None:
    for pixels in (COLOURS, GREYS, GREYS[:, :, 0]):
        data = encode(pixels)
        assert data.startswith(b"\x89PNG")
        channels = 3 if pixels is COLOURS else 1
        assert np.array_equal(decode(data, channels, "here"), pixels.reshape(2, 3, channels))
    noise = np.random.default_rng(0).integers(0, 4, (64, 64, 3)).astype(np.uint8) * 80
    opened = [Image.open(io.BytesIO(encode(noise, quality))) for quality in (10, 90)]
    assert [each.format for each in opened] == ["JPEG"] * 2
    sizes = [len(encode(noise, quality)) for quality in (10, 50, 90)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2]
    levels = {level: saved(Image.fromarray(noise), "PNG", compress_level=level) for level in (1, 9)}
    assert encode(noise) == encode(noise, level=1) == levels[1] != levels[9]
    assert encode(noise, level=9) == levels[9]


def test_an_image_has_the_mode_of_its_channels() -> None:
    modes = [as_image(each).mode for each in (COLOURS, GREYS, GREYS[:, :, 0])]
    assert modes == ["RGB", "L", "L"]


def test_channels_are_copied_in_their_order() -> None:
    out = np.zeros_like(COLOURS)
    copy_by_channel(COLOURS[:, ::-1], out)
    assert np.array_equal(out, COLOURS[:, ::-1])


def test_a_part_of_the_rows_and_columns_gives_the_same_cut() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 15, 3)).astype(np.uint8)
    for given in ([4.0, 3.0, 5.0, 6.0], [3.25, 2.5, 4.5, 5.25], [5.0, 4.0, 12.0, 10.0]):
        box = np.array(given)
        expected, part = cut_out(pixels, box)
        found, own = cut_out(pixels[2:, 3:], box, (3, 2))
        assert np.array_equal(found, expected)
        assert own == part
    assert whole(pixels) == (0, 0, 15, 12)


def test_a_part_beyond_the_image_is_filled_with_zeros() -> None:
    pixels = np.arange(1, 13, dtype=np.uint8).reshape(3, 4, 1)
    cut, part = cut_out(pixels, np.array([-2.0, -1.0, 4.0, 3.0]))
    assert cut[..., 0].tolist() == [[0, 0, 0, 0], [0, 0, 1, 2], [0, 0, 5, 6]]
    assert part == (0, 0, 4, 3)
    cut, part = cut_out(pixels, np.array([2.0, 1.0, 4.0, 3.0]))
    assert cut[..., 0].tolist() == [[7, 8, 0, 0], [11, 12, 0, 0], [0, 0, 0, 0]]
    cut, part = cut_out(pixels, np.array([0.25, 1.5, 1.5, 1.25]))  # touches columns 0-1, rows 1-2
    assert cut[..., 0].tolist() == [[5, 6], [9, 10]]
    assert part == (0.25, 0.5, 1.75, 1.75)


def test_a_part_is_resized_by_the_mean_of_what_it_covers() -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 1:7] = [40, 80, 200]  # one pixel more on both sides than the part
    assert fit(pixels, (2.0, 0.0, 6.0, 4.0), 2).tolist() == [[[40, 80, 200]] * 2] * 2
    square = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
    assert fit(square, (0.0, 0.0, 4.0, 4.0), 4) is square
    inner = fit(square, (1.0, 1.0, 3.0, 3.0), 4)
    assert inner.shape == (4, 4, 1)
    assert fit(square, (0.0, 0.0, 4.0, 4.0), 1)[0, 0, 0] in (7, 8)  # antialiased: the mean is 7.5


def test_pixels_of_16_bits_keep_their_upper_half() -> None:
    assert eight_bits(np.array([[0, 255, 256, 65535]], np.uint16)).tolist() == [[0, 0, 1, 255]]
    same = np.array([[3]], np.uint8)
    assert eight_bits(same) is same
    with pytest.raises(DepthError):
        eight_bits(np.zeros((1, 1), np.float32))
