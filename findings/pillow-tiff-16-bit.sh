#!/usr/bin/env bash
# Pillow and 16-bit TIFF: two layouts are decoded without an error, and wrongly.
#
# Usually expected: the layout of a TIFF (interleaved or one plane per channel, compressed or not,
# 0 is black or 0 is white) does not change the picture that a reader returns.
# Seen on 2026-11-27 with Pillow 13.0.0 and tifffile 2026.3.3:
# - 16-bit RGB in separate planes, uncompressed: the result mixes high and low bytes and skips
#   columns. The same planes compressed with zlib, interleaved, or with 8 bits are right.
# - Grey where 0 is white (PhotometricInterpretation 0): Pillow inverts 8-bit pixels to the usual
#   "0 is black", but returns 16-bit pixels as stored, so the picture is a negative.
# tifffile reads every one of these files as it was written.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  pillow==13.0.0 tifffile==2026.3.3 numpy==2.4.6

"$work/venv/bin/python" - <<'PY'
import io

import numpy as np
import PIL
import tifffile
from PIL import Image

print("Pillow", PIL.__version__, "tifffile", tifffile.__version__)
y, x = np.mgrid[0:16, 0:24]
rgb16 = np.stack([x * 2000 + 500, y * 3000 + 700, (x + y) * 1000 + 300], -1).astype(np.uint16)
rgb8 = (rgb16 >> 8).astype(np.uint8)


def difference(pixels, expected, **layout):
    """Return the largest difference of Pillow's pixels from the expected ones."""
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, **layout)
    file.seek(0)
    assert np.array_equal(tifffile.imread(file), pixels)
    file.seek(0)
    read = np.asarray(Image.open(file))
    assert read.shape == expected.shape
    return int(abs(read.astype(int) - expected.astype(int)).max())


def planes(pixels):
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


separate = {"photometric": "rgb", "planarconfig": "separate"}
# Pillow returns 16-bit RGB as 8-bit RGB: the high bytes.
rows = [
    ("RGB 16, interleaved", rgb16, rgb8, {"photometric": "rgb"}),
    ("RGB 8, planes", planes(rgb8), rgb8, separate),
    ("RGB 16, planes, zlib", planes(rgb16), rgb8, {**separate, "compression": "zlib"}),
    ("RGB 16, planes", planes(rgb16), rgb8, separate),
    ("grey 8, 0 is white", rgb8[..., 0], 255 - rgb8[..., 0], {"photometric": "miniswhite"}),
    ("grey 16, 0 is white", rgb16[..., 0], 65535 - rgb16[..., 0], {"photometric": "miniswhite"}),
    ("grey 16, 0 is white, against the stored values", rgb16[..., 0], rgb16[..., 0],
     {"photometric": "miniswhite"}),
]
seen = {}
for name, pixels, expected, layout in rows:
    seen[name] = difference(pixels, expected, **layout)
    print(f"{name}: largest difference {seen[name]}")

wrong = {name for name, value in seen.items() if value}
assert wrong == {"RGB 16, planes", "grey 16, 0 is white"}, wrong
print("as stated")
PY
