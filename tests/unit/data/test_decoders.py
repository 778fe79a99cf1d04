"""The fast path of the native loader, held against Pillow: the same pixels, sooner."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from raysuite.data import decoders
from raysuite.data.decoders import cut_from, resized_from, shrunk_from
from raysuite.data.pixels import cut_out, decode, fit
from raysuite.data.rendering import fit_into
from raysuite.errors import DataError
from tests.image_files import drawn_jpeg
from tests.require import require

WIDTH, HEIGHT = 133, 115
"""No multiple of a block, nor of two."""
BOXES = [(0, 0, WIDTH, HEIGHT), (5, 3, 40, 21), (17, 33, 116, 30), (0, 0, 9, 1), (60, 98, 31, 17)]
BOXES += [(12.25, 9.5, 60.125, 43.75), (-4, -3, WIDTH, HEIGHT), (6, 14, WIDTH, HEIGHT)]
BOXES += [(31, top, 50, height) for top, height in [(0, 15), (0, 16), (0, 17), (40, 40), (1, 98)]]


def picture(mode: str = "RGB", scale: int = 1) -> Image.Image:
    """Smooth shapes under noise, with colours that change from pixel to pixel."""
    random = np.random.default_rng(7)
    width, height = WIDTH * scale, HEIGHT * scale
    coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3)).astype(np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    noisy = smooth + random.integers(-40, 40, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)


def encoded(form: str = "JPEG", mode: str = "RGB", scale: int = 1, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture(mode, scale).save(buffer, form, **options)
    return buffer.getvalue()


IMAGES = {
    "444": encoded(subsampling="4:4:4", quality=90),
    "422": encoded(subsampling="4:2:2", quality=90),
    "420": encoded(subsampling="4:2:0", quality=90),
    "411": encoded(subsampling="4:1:1", quality=90),
    "restarts": encoded(subsampling="4:2:0", restart_marker_blocks=3),
    "padded": encoded() + b"\0" * 64,
    "progressive": encoded(progressive=True),
    "grey": encoded(mode="L"),
    "cmyk": encoded(mode="CMYK"),
    "rgb stored": encoded(keep_rgb=True),
    "png": encoded("PNG"),
}


@pytest.fixture(params=["columns and rows", "rows"])
def decoded(request, monkeypatch):
    """What is decoded of a JPEG: by `crop.c`, or by simplejpeg."""
    if request.param == "columns and rows":
        require("jpeglib")
    else:
        monkeypatch.setattr(decoders, "_library", lambda: None)


@pytest.mark.usefixtures("decoded")
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", IMAGES)
def test_a_part_has_the_pixels_of_the_whole(name, channels, box):
    view = np.array(box, np.float64)
    expected, part = cut_out(decode(IMAGES[name], channels, "here"), view)
    got, got_part = cut_from(IMAGES[name], channels, view, "here")
    assert np.array_equal(got, expected)
    assert got_part == part


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.thorough)])
def test_parts_of_any_jpegs_have_the_pixels_of_the_whole(count):
    require("jpeglib")
    decoded, crop = 0, decoders._cropped
    for seed in range(count):
        draws = np.random.default_rng(seed)
        data, channels = drawn_jpeg(draws), int(draws.choice([1, 3]))
        whole = decode(data, channels, "here")
        header = decoders.header_of(data, "here")
        size = draws.uniform(1, [header.width, header.height])
        view = np.array([*draws.uniform(-2, [header.width, header.height] - size + 2), *size])
        if draws.integers(2):
            view = view.round()
        expected, part = cut_out(whole, view)
        got, got_part = cut_from(data, channels, view, "here")
        assert np.array_equal(got, expected), (seed, header, view)
        assert got_part == part
        if decoders._simple(data, channels, "here") is not None:
            decoded += crop(decoders._library(), data, header, channels, view) is not None
    assert decoded > count / 2


def test_of_a_part_only_its_columns_and_rows_are_decoded():
    require("jpeglib")
    view = np.array([64.0, 40.0, 32.0, 30.0])
    got, _ = cut_from(IMAGES["420"], 3, view, "here")
    assert got.shape == (30, 32, 3)
    assert got.flags.c_contiguous  # no column beside it, which torch would copy
    assert got.ctypes.data == got.base.ctypes.data  # no row above it


@pytest.mark.parametrize("name", ["444", "422", "420", "411", "restarts", "grey", "rgb stored"])
def test_of_sequential_jpegs_the_rows_below_are_not_decoded(name):
    header = decoders.header_of(IMAGES[name], "here")
    assert decoders._height_needed(IMAGES[name], header, 20) <= 48 < HEIGHT
    assert len(decoders._rows(IMAGES[name], 3, 20, "here")) <= 48


def test_a_jpeg_with_a_scan_per_channel_is_decoded_whole():
    data = IMAGES["444"]
    header = decoders.header_of(data, "here")
    scan = data.index(b"\xff\xda", header.frame)
    apart = data[: scan + 4] + b"\x01" + data[scan + 5 :]
    assert decoders._height_needed(apart, header, 20) == HEIGHT


def test_without_a_compiler_nothing_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert decoders._library.__wrapped__() is None


HALF = len(IMAGES["420"]) // 2
FILLING = {"an end too early": b"\xff\xd9", "zeros": bytes(40)}


@pytest.mark.usefixtures("decoded")
@pytest.mark.parametrize("left", [0, 50])
@pytest.mark.parametrize("bottom", [70, HEIGHT])
@pytest.mark.parametrize("filling", FILLING)
def test_damage_that_pillow_reads_over_gives_the_same_pixels(filling, bottom, left):
    data = IMAGES["420"]
    spoiled = data[:HALF] + FILLING[filling] + data[HALF + len(FILLING[filling]) :]
    view = np.array([left, 0, WIDTH - left, bottom], np.float64)
    expected = decode(spoiled, 3, "here")[:bottom, left:]
    assert not np.array_equal(expected, decode(data, 3, "here")[:bottom, left:])
    assert np.array_equal(cut_from(spoiled, 3, view, "here")[0], expected)


def test_damage_that_no_decoder_reads_over_is_named():
    data = IMAGES["420"]
    spoiled = data[:HALF] + np.random.default_rng(0).bytes(300) + data[HALF + 300 :]
    view = np.array([0, 0, WIDTH, HEIGHT], np.float64)
    with pytest.raises(DataError, match=r"^here: not a readable image \(OSError"):
        cut_from(spoiled, 3, view, "here")


def test_pixels_are_no_jpeg():
    pixels = np.asarray(picture())
    view = np.array([5, 3, 40, 21], np.float64)
    assert np.array_equal(cut_from(pixels, 3, view, "here")[0], pixels[3:24, 5:45])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(300, 200), (64, 64), (30, 47), (1, 1), (65, 3)])
def test_torch_resizes_as_pillow_does_but_for_one_level(shape, channels):
    random = np.random.default_rng(1)
    whole = random.integers(0, 256, (*shape, channels)).astype(np.uint8)
    cut = whole[:, : shape[1]]
    part = (0.0, 0.0, float(shape[1]), float(shape[0]))
    out = np.empty((64, 64, channels), np.uint8)
    fit_into(cut, part, out)
    difference = np.abs(out.astype(int) - fit(cut, part, 64))
    assert difference.max() <= 1
    assert difference.mean() < 0.3


def test_fractions_of_a_pixel_are_left_to_pillow():
    cut, part = np.asarray(picture()), (0.25, 0.5, 100.5, 99.75)
    out = np.empty((64, 64, 3), np.uint8)
    fit_into(cut, part, out)
    assert np.array_equal(out, fit(cut, part, 64))


@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.thorough)])
def test_a_crop_resized_while_it_is_decoded_has_the_bits_of_torch(count):
    require("jpeglib")
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("crop.c resizes only with AVX2")
    done = 0
    for seed in range(count):
        draws = np.random.default_rng(seed)
        data, size = drawn_jpeg(draws), int(draws.choice([1, 2, 7, 64, 224]))
        whole = decode(data, 3, "here")
        ends = np.sort([draws.integers(0, side + 1, 2) for side in whole.shape[1::-1]])
        if (ends[:, 0] == ends[:, 1]).any():
            continue
        (left, right), (top, bottom) = ends.tolist()
        box = np.array([left, top, right - left, bottom - top], np.float64)
        expected, found = np.empty((2, size, size, 3), np.uint8)
        cut, part = cut_out(whole, box)
        fit_into(cut.copy(), part, expected)
        mirrored = bool(draws.integers(2))
        if resized_from(data, box, mirrored, found, "here"):
            done += 1
            shown = expected[:, ::-1] if mirrored else expected
            assert np.array_equal(found, shown), (seed, box, size)
    assert done > count / 2


@pytest.mark.parametrize(
    "sample", [IMAGES["cmyk"], IMAGES["png"], IMAGES["420"][:HALF] + b"\xff\xd9"]
)
def test_damaged_jpegs_and_other_files_are_not_resized_while_they_are_decoded(sample):
    box, out = np.array([0, 0, WIDTH, HEIGHT], np.float64), np.empty((64, 64, 3), np.uint8)
    assert not resized_from(sample, box, False, out, "here")


@pytest.mark.parametrize("box", [(0.5, 0, 60, 60), (-1, 0, 60, 60), (74, 0, 60, 60)])
def test_parts_of_pixels_and_pixels_outside_are_not_resized_while_decoding(box):
    view, out = np.array(box, np.float64), np.empty((64, 64, 3), np.uint8)
    assert not resized_from(IMAGES["420"], view, False, out, "here")


@pytest.mark.parametrize("box", [(40, 24, 400, 360), (0, 0, 532, 460), (12.5, 3.25, 128, 128)])
def test_a_scaled_image_shows_the_same_part(box):
    data, view = encoded(scale=4, quality=95), np.array(box, np.float64)
    size = 64
    pixels, part = shrunk_from(data, 3, view, size, "here")
    whole, whole_part = cut_from(data, 3, view, "here")
    assert min(pixels.shape[:2]) >= size
    assert len(pixels) <= math.ceil(len(whole) / 2) + 1
    shown, expected = np.empty((2, size, size, 3), np.uint8)
    fit_into(pixels, part, shown)
    fit_into(whole, whole_part, expected)
    assert np.abs(shown.astype(int) - expected).mean() < 4  # a shift by a pixel gives 6 or more


def test_an_image_that_is_shown_large_is_not_scaled():
    data, view = encoded(scale=2), np.array([10, 10, 127, 127], np.float64)
    exact, _ = cut_from(data, 3, view, "here")
    kept = exact.copy()
    assert np.array_equal(shrunk_from(data, 3, view, 64, "here")[0], kept)


@pytest.mark.parametrize("sample", [IMAGES["png"], IMAGES["cmyk"], np.asarray(picture())])
def test_what_is_no_simple_jpeg_is_not_scaled(sample):
    view = np.array([10, 10, 100, 90], np.float64)
    exact, part = cut_from(sample, 3, view, "here")
    kept = exact.copy()
    found, found_part = shrunk_from(sample, 3, view, 32, "here")
    assert np.array_equal(found, kept)
    assert found_part == part
