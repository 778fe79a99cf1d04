"""Image files of every mode, depth and format: PNGs and TIFFs from the bytes up, others by Pillow
and libjpeg-turbo; and as many different ones as a test wants, drawn with random options."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

Pixels = NDArray[Any]
Order = Literal["<", ">"]


def packed(rows: Pixels, bits: int, order: Order) -> list[bytes]:
    """The bytes of each row [H, W * C], padded to whole bytes where `bits` are no multiple of 8."""
    if rows.dtype.itemsize * 8 == bits:
        return [row.astype(row.dtype.newbyteorder(order)).tobytes() for row in rows]
    shifts = np.arange(bits - 1, -1, -1)
    return [np.packbits((row[:, None] >> shifts & 1).astype(np.uint8)).tobytes() for row in rows]


def png(
    pixels: Pixels,
    colour: int,
    bits: int,
    *,
    before: Sequence[tuple[bytes, bytes]] = (),
    interlaced: bool = False,
    piece: int = 1 << 20,
    level: int = 6,
) -> bytes:
    """A PNG of [H, W, C] (of a palette: its indices), with chunks `before` those of its pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + crc

    height, width = pixels.shape[:2]
    passes = [(0, 0, 1, 1)]
    if interlaced:  # https://www.w3.org/TR/png-3/#8Interlace
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4)]
        passes += [(1, 0, 2, 2), (0, 1, 1, 2)]
    scans = b""
    for left, top, across, down in passes:
        part = pixels[top::down, left::across]
        if part.size:
            scans += b"".join(b"\0" + row for row in packed(_flat(part), bits, ">"))
    content = zlib.compress(scans, level)
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    pieces = [content[start : start + piece] for start in range(0, len(content), piece)]
    chunks = [(b"IHDR", head), *before, *((b"IDAT", each) for each in pieces), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def _flat(pixels: Pixels) -> Pixels:
    return pixels.reshape(len(pixels), -1)


_SAMPLE = {"u": 1, "i": 2, "f": 3}


def tiff(
    pixels: Pixels,
    *,
    bits: int | None = None,
    photometric: int | None = None,
    order: Order = "<",
    apart: bool = False,
    deflated: bool = False,
    rows: int = 1 << 20,
    tile: int = 0,
    big: bool = False,
    more: dict[int, Sequence[int]] | None = None,
) -> bytes:
    """A TIFF of [H, W, C]: https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf.

    `apart`: a plane for each channel; `rows` of a strip, or square tiles of side `tile`; `more`
    tags of 16-bit numbers.
    """
    height, width, channels = pixels.shape
    bits = bits or 8 * pixels.dtype.itemsize
    pieces: list[bytes] = []
    for plane in np.split(pixels, channels, axis=2) if apart else [pixels]:
        for top in range(0, height, tile or rows):
            strip = plane[top : top + (tile or rows)]
            for left in range(0, width, tile or width):
                part = strip[:, left : left + (tile or width)]
                if tile:
                    down, across = tile - part.shape[0], tile - part.shape[1]
                    part = np.pad(part, ((0, down), (0, across), (0, 0)))
                pieces.append(b"".join(packed(_flat(part), bits, order)))
    if deflated:
        pieces = [zlib.compress(piece) for piece in pieces]
    pieces = [piece + b"\0" * (len(piece) % 2) for piece in pieces]
    starts = np.cumsum([16 if big else 8, *map(len, pieces)]).tolist()
    tags: dict[int, tuple[str, Sequence[int]]] = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", [bits] * channels),
        259: ("H", [8 if deflated else 1]),
        262: ("H", [(1 if channels < 3 else 2) if photometric is None else photometric]),
        277: ("H", [channels]),
        284: ("H", [2 if apart else 1]),
        339: ("H", [_SAMPLE[pixels.dtype.kind]] * channels),
        324 if tile else 273: ("I", starts[:-1]),
        325 if tile else 279: ("I", [len(piece) for piece in pieces]),
    }
    tags |= {322: ("H", [tile]), 323: ("H", [tile])} if tile else {278: ("I", [min(rows, height)])}
    tags |= {tag: ("H", values) for tag, values in (more or {}).items()}
    number, count, room = ("Q", "Q", 8) if big else ("I", "H", 4)
    entries, beyond = b"", b""
    end = starts[-1] + struct.calcsize(f"={count}") + len(tags) * (4 + 2 * room) + room
    for tag, (kind, values) in sorted(tags.items()):
        content = struct.pack(f"{order}{len(values)}{kind}", *values)
        if len(content) > room:
            place = struct.pack(order + number, end + len(beyond))
            beyond, content = beyond + content + b"\0" * (len(content) % 2), place
        entries += struct.pack(f"{order}HH{number}", tag, {"H": 3, "I": 4}[kind], len(values))
        entries += content.ljust(room, b"\0")
    mark = b"II" if order == "<" else b"MM"
    head = struct.pack(order + "HHHQ", 43, 8, 0, starts[-1])
    head = mark + (head if big else struct.pack(order + "HI", 42, starts[-1]))
    directory = struct.pack(order + count, len(tags)) + entries + b"\0" * room
    return head + b"".join(pieces) + directory + beyond


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    """What Pillow writes."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


# One file of each kind, and what is right to see of it.


@dataclass(frozen=True)
class Kind:
    """A mode and depth in a format; its image has `side` x `side` pixels."""

    form: str
    mode: str
    bits: str
    data: bytes
    levels: NDArray[np.uint8] | None
    """RGB as every loader should see it; None where it should refuse it."""
    how: str
    """How `levels` come from what is stored."""
    array: Pixels | None = None
    """The pixels as an array of the same depth; None where there is none."""


SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "BMP": ".bmp", "GIF": ".gif"}
SUFFIXES |= {"TIFF": ".tif"}
_HOW = {1: "spread", 2: "spread", 4: "spread", 8: "as they are", 16: "upper 8 bits"}


def _rgb(levels: Pixels) -> NDArray[np.uint8]:
    levels = levels[:, :, :1] if levels.shape[2] < 3 else levels[:, :, :3]
    return np.broadcast_to(levels, (*levels.shape[:2], 3)).astype(np.uint8)


def kinds(side: int) -> list[Kind]:  # noqa: C901 - a table
    """Every mode, depth and format: those that are taken, and those that are not."""
    deep = _smooth(np.random.default_rng(0), side, side, 4)
    found: list[Kind] = []

    def add(
        form: str, mode: str, bits: int, data: bytes, values: Pixels | None, array: bool = True
    ) -> None:
        """`values`: as stored, unsigned of `bits`; None where they are refused."""
        levels = None
        if values is not None:
            levels = _rgb(values >> 8 if bits == 16 else values * (255 // (2**bits - 1)))
        given = values.astype(np.uint8 if bits < 16 else np.uint16) if values is not None else None
        given = given if array and bits >= 8 else None
        how = _HOW.get(bits, "")
        found.append(Kind(form, mode, f"{bits}", data, levels, how, given))

    def add_as_pillow(form: str, mode: str, data: bytes, how: str) -> None:
        with Image.open(io.BytesIO(data)) as image:
            levels = np.asarray(image.convert("RGB"))
        found.append(Kind(form, mode, "8", data, levels, how))

    def of(bits: int, channels: int) -> Pixels:
        return deep[:, :, :channels] >> (16 - bits)

    def stored(bits: int, channels: int) -> Pixels:
        return of(bits, channels).astype(np.uint8 if bits <= 8 else np.uint16)

    modes = {"grey": (0, 1), "RGB": (2, 3), "grey and alpha": (4, 2), "RGB and alpha": (6, 4)}
    for mode, (colour, channels) in modes.items():
        for bits in (1, 2, 4, 8, 16) if mode == "grey" else (8, 16):
            data, alpha = png(stored(bits, channels), colour, bits), "alpha" in mode
            add("PNG", mode, bits, data, of(bits, channels), array=not alpha)
    picture = Image.fromarray(stored(8, 3))
    palette = np.random.default_rng(1).integers(0, 256, (256, 3)).astype(np.uint8)
    for bits in (1, 2, 4, 8):
        entries = palette[: 2**bits]
        for mode, more in (("palette", []), ("palette and alpha", [(b"tRNS", b"\x80\x40")])):
            data = png(stored(bits, 1), 3, bits, before=[(b"PLTE", entries.tobytes()), *more])
            levels = entries[stored(bits, 1)[:, :, 0]]
            found.append(Kind("PNG", mode, f"{bits}", data, levels, "the palette's colours"))
    how = "as Pillow decodes them"
    for mode, name in (("L", "grey"), ("RGB", "RGB"), ("CMYK", "CMYK")):
        data = saved(picture.convert(mode), "JPEG", quality=95)
        add_as_pillow("JPEG", name, data, "Pillow's formula" if mode == "CMYK" else how)
    twelve = bytearray(saved(picture.convert("L"), "JPEG"))
    twelve[twelve.index(b"\xff\xc0") + 4] = 12  # its header alone is one of 12 bits
    add("JPEG", "grey", 12, bytes(twelve), None)
    for mode, name in (("RGB", "RGB"), ("RGBA", "RGB and alpha")):
        add_as_pillow("WEBP", name, saved(picture.convert(mode), "WEBP", lossless=True), how)
    add_as_pillow("GIF", "palette", saved(picture.convert("P"), "GIF"), "the palette's colours")
    add("BMP", "grey", 1, saved(Image.fromarray(stored(1, 1)[:, :, 0] > 0), "BMP"), of(1, 1))
    add("BMP", "RGB", 8, saved(picture, "BMP"), of(8, 3))
    add_as_pillow("BMP", "palette", saved(picture.convert("P"), "BMP"), "the palette's colours")
    for bits in (1, 2, 4, 8, 16):
        add("TIFF", "grey", bits, tiff(stored(bits, 1), bits=bits), of(bits, 1))
    for bits in (8, 16):
        add("TIFF", "RGB", bits, tiff(stored(bits, 3)), of(bits, 3))
        alpha = tiff(stored(bits, 4), more={338: [2]})
        add("TIFF", "RGB and alpha", bits, alpha, of(bits, 4), array=False)
    for mode, name in (("CMYK", "CMYK"), ("YCbCr", "YCbCr"), ("P", "palette")):
        how = "the palette's colours" if mode == "P" else "Pillow's formula"
        add_as_pillow("TIFF", name, saved(picture.convert(mode), "TIFF"), how)
    add("TIFF", "grey", 12, tiff(stored(12, 1), bits=12), None)
    for channels, mode in ((1, "grey"), (3, "RGB")):
        for letter, name in (("u", "unsigned"), ("i", "signed"), ("f", "float")):
            for size in (1, 2, 4, 8):
                if (letter, size) in (("u", 1), ("u", 2), ("f", 1)):
                    continue
                array = (deep[:, :, :channels] - 2**15).astype(f"{letter}{size}")
                data = tiff(array)
                found.append(Kind("TIFF", mode, f"{8 * size} {name}", data, None, "", array))
    white = tiff(stored(16, 1), photometric=0)
    add("TIFF", "grey, 0 is white", 8, tiff(255 - stored(8, 1), photometric=0), of(8, 1), False)
    found.append(Kind("TIFF", "grey, 0 is white", "16", white, None, ""))
    add("TIFF", "RGB, planes", 8, tiff(stored(8, 3), apart=True), of(8, 3), False)
    planes = tiff(stored(16, 3), apart=True, deflated=True)
    add("TIFF", "RGB, planes, deflated", 16, planes, of(16, 3), False)
    found.append(Kind("TIFF", "RGB, planes", "16", tiff(stored(16, 3), apart=True), None, ""))
    add_as_pillow("TIFF", "LAB", tiff(stored(8, 3), photometric=8), "Pillow's formula")
    return found


def _smooth(draws: np.random.Generator, width: int, height: int, channels: int) -> Pixels:
    """[H, W, C] of 16 bits in int64: smooth shapes."""
    coarse = draws.integers(0, 256, (4, 4, channels)).astype(np.uint8)
    whole = [
        np.asarray(
            Image.fromarray(coarse[:, :, c]).resize((width, height), Image.Resampling.BICUBIC)
        )
        for c in range(channels)
    ]
    return np.stack(whole, axis=2).astype(np.int64) * 257


# As many valid files as a test wants.


def drawn(seed: int, side: int | None) -> tuple[str, bytes]:
    """The suffix and the bytes of a valid file with random options. `side`: its width and height;
    None: drawn too."""
    draws = np.random.default_rng(seed)
    width, height = (side, side) if side else draws.integers(1, 90, 2).tolist()
    deep = _deep(draws, width, height)
    writers = [_pillow_png, _own_png, _pillow_jpeg, _turbo_jpeg, _webp, _gif, _bmp, _pillow_tiff]
    return draws.choice(np.array([*writers, _own_tiff, _own_tiff]))(draws, deep)


_Draws = np.random.Generator


def drawn_jpeg(draws: _Draws) -> bytes:
    """A valid JPEG with random options, of up to 200 x 200 pixels."""
    deep = _deep(draws, *draws.integers(1, 201, 2).tolist())
    return draws.choice(np.array([_pillow_jpeg, _turbo_jpeg]))(draws, deep)[1]


def _deep(draws: _Draws, width: int, height: int) -> Pixels:
    """[H, W, 4] of 16 bits in int64: smooth shapes, some of them with noise."""
    deep = _smooth(draws, width, height, 4) + draws.integers(0, draws.choice([1, 4000]), 4)
    noise = draws.integers(0, draws.choice([2, 30 * 257]), deep.shape)
    return (deep + noise).clip(0, 65535)


def _maybe(draws: _Draws, options: dict[str, Any]) -> dict[str, Any]:
    """Each of `options` with a probability of a third."""
    return {name: value for name, value in options.items() if draws.random() < 1 / 3}


def _image(draws: _Draws, deep: Pixels, modes: Sequence[str]) -> Image.Image:
    mode = str(draws.choice(np.array(modes)))
    if mode == "I;16":
        return Image.fromarray(deep[:, :, 0].astype(np.uint16))
    if mode == "I":
        return Image.fromarray((deep[:, :, 0] - 2**15).astype(np.int32))
    if mode == "F":
        return Image.fromarray(deep[:, :, 0].astype(np.float32))
    eight = Image.fromarray((deep >> 8).astype(np.uint8), "RGBA")
    if mode == "LAB":
        return Image.frombytes("LAB", eight.size, eight.convert("RGB").tobytes())
    if mode == "P":
        return eight.convert("RGB").quantize(int(draws.integers(2, 257)))
    return eight if mode == "RGBA" else eight.convert("RGB").convert(mode)


def _exif(draws: _Draws) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = int(draws.integers(1, 9))
    return exif


def _pillow_png(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    image = _image(draws, deep, ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"))
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "x" * 50, zip=bool(draws.integers(2)))
    text.add_itxt("Title", "y" * 50, zip=bool(draws.integers(2)))
    options = {"compress_level": int(draws.integers(10)), "optimize": True, "exif": _exif(draws)}
    options |= {"pnginfo": text, "icc_profile": draws.bytes(300), "dpi": (72, 72)}
    if image.mode in ("L", "P"):
        options["transparency"] = int(draws.integers(2))
    if image.mode == "RGB":
        options["transparency"] = image.getpixel((0, 0))
    if image.mode in ("L", "RGB", "RGBA"):
        options |= {
            "save_all": True,
            "append_images": [image.transpose(Image.Transpose.ROTATE_180)],
        }
    return ".png", saved(image, "PNG", **_maybe(draws, options))


def _own_png(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    colour = int(draws.choice([0, 2, 3, 4, 6]))
    bits = int(draws.choice({0: [1, 2, 4, 8, 16], 3: [1, 2, 4, 8]}.get(colour, [8, 16])))
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    pixels = (deep[:, :, :channels] >> (16 - bits)).astype(np.uint16 if bits == 16 else np.uint8)
    before: list[tuple[bytes, bytes]] = []
    if draws.integers(2):
        before.append((b"gAMA", struct.pack(">I", int(draws.choice([45455, 100000, 20000])))))
    if colour == 3:
        before.append((b"PLTE", draws.bytes(3 * 2**bits)))
    if colour in (0, 2) and draws.integers(2):
        before.append((b"tRNS", pixels[0, 0].astype(">u2").tobytes()))
    if colour == 3 and draws.integers(2):
        before.append((b"tRNS", draws.bytes(int(draws.integers(1, 2**bits + 1)))))
    options = {"interlaced": True, "piece": int(draws.integers(1, 200))}
    options["level"] = int(draws.integers(10))
    return ".png", png(pixels, colour, bits, before=before, **_maybe(draws, options))


def _pillow_jpeg(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    image = _image(draws, deep, ("L", "RGB", "RGB", "CMYK"))
    options = {"quality": int(draws.integers(1, 101)), "optimize": True, "progressive": True}
    options |= {"subsampling": str(draws.choice(["4:4:4", "4:2:2", "4:2:0", "4:1:1"]))}
    options |= {"restart_marker_blocks": int(draws.integers(1, 9)), "exif": _exif(draws)}
    options |= {"comment": b"a comment", "icc_profile": draws.bytes(300), "smooth": 20}
    chosen = _maybe(draws, options)
    if image.mode == "RGB" and "subsampling" not in chosen:
        chosen |= _maybe(draws, {"keep_rgb": True})
    return ".jpg", saved(image, "JPEG", **chosen)


def _turbo_jpeg(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    import simplejpeg

    grey = bool(draws.integers(3) == 0)
    pixels = np.ascontiguousarray((deep[:, :, : 1 if grey else 3] >> 8).astype(np.uint8))
    sampling = "Gray" if grey else str(draws.choice(["444", "422", "420", "440", "411"]))
    data = simplejpeg.encode_jpeg(
        pixels,
        quality=int(draws.integers(1, 101)),
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling=sampling,
        fastdct=bool(draws.integers(2)),
    )
    return ".jpeg", data


def _webp(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    image = _image(draws, deep, ("RGB", "RGBA", "L"))
    options = {"lossless": True, "quality": int(draws.integers(1, 101)), "method": 2}
    options |= {"exact": True, "exif": _exif(draws), "save_all": True, "append_images": [image]}
    return ".webp", saved(image, "WEBP", **_maybe(draws, options))


def _gif(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    image = _image(draws, deep, ("1", "L", "P", "RGB", "RGBA"))
    options = {"interlace": 0, "comment": b"a comment", "optimize": True, "transparency": 0}
    options |= {"save_all": True, "append_images": [image.transpose(Image.Transpose.ROTATE_180)]}
    return ".gif", saved(image, "GIF", **_maybe(draws, options))


def _bmp(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    return ".bmp", saved(_image(draws, deep, ("1", "L", "P", "RGB", "RGBA")), "BMP")


_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits")


def _pillow_tiff(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    modes = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F", "LAB")
    image = _image(draws, deep, modes)
    compressions = list(_COMPRESSIONS)
    compressions += ["group3", "group4"] if image.mode == "1" else []
    compressions += ["jpeg"] if image.mode in ("L", "RGB", "YCbCr") else []
    options = {"exif": _exif(draws), "big_tiff": True, "dpi": (72, 72), "save_all": True}
    options |= {"append_images": [image], "compression": str(draws.choice(compressions))}
    return ".tif", saved(image, "TIFF", **_maybe(draws, options))


def _own_tiff(draws: _Draws, deep: Pixels) -> tuple[str, bytes]:
    channels, bits = int(draws.choice([1, 1, 3, 4])), None
    kind = str(draws.choice(["u1", "u1", "u2", "u2", "i1", "i2", "u4", "i4", "f2", "f4", "f8"]))
    if kind == "u1" and channels == 1:
        bits = int(draws.choice([1, 2, 4, 8]))
    if kind == "u2" and channels == 1:
        bits = int(draws.choice([12, 16, 16]))
    shift = 16 - (bits or min(16, 8 * int(kind[1]))) + (kind[0] != "u")
    values = (deep[:, :, :channels] >> shift).astype(kind)
    options: dict[str, Any] = {"order": ">", "deflated": True, "rows": int(draws.integers(1, 9))}
    options |= {"tile": 16, "big": True, "apart": channels > 1}
    more = {274: [int(draws.integers(1, 9))]} if draws.integers(2) else {}
    if channels == 4:
        more[338] = [int(draws.integers(3))]
    if channels == 1:
        options["photometric"] = 0
    return ".tiff", tiff(values, bits=bits, more=more, **_maybe(draws, options))


class Own:
    """A data set of one's own that gives the files of `kinds`: their bytes, what Pillow opens, or
    arrays."""

    classes = 1

    def __init__(self, split: str, side: int, path: str) -> None:
        self._kinds, self._path = given(kinds(side), path), path

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, sample: int) -> tuple[Any, int]:
        kind = self._kinds[sample]
        if self._path == "own array":
            return kind.array, 0
        return (kind.data if self._path == "own bytes" else Image.open(io.BytesIO(kind.data))), 0


def given(all_kinds: Sequence[Kind], path: str) -> list[Kind]:
    """Those that can take this path: not all have arrays, and Pillow does not open all files."""
    if path == "own array":
        return [kind for kind in all_kinds if kind.array is not None]
    return [kind for kind in all_kinds if path != "own PIL image" or _opens(kind.data)]


def _opens(data: bytes) -> bool:
    try:
        Image.open(io.BytesIO(data)).close()
    except OSError:
        return False
    return True
