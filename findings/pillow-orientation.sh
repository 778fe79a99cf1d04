#!/usr/bin/env bash
# Pillow and the orientation tag: a TIFF is turned when it is opened, other formats are not.
#
# Usually expected: `Image.open` leaves the orientation to the caller in every format, who calls
# `ImageOps.exif_transpose` or reads tag 274.
# Seen on 2026-11-27 with Pillow 13.0.0: JPEG, PNG, WebP and AVIF come as stored and keep the tag;
# a TIFF comes turned, its `size` is already exchanged before its pixels are decoded, and its tag
# is gone. One picture in two formats thus gives arrays of two shapes, and code that reads height
# and width from the file's header disagrees with the array.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  pillow==13.0.0

"$work/venv/bin/python" - <<'PY'
import io

import PIL
from PIL import Image

print("Pillow", PIL.__version__)
ORIENTATION, LENGTH, WIDTH = 274, 257, 256
picture = Image.new("RGB", (40, 20), (10, 200, 30))
seen = {}
for name in ("JPEG", "PNG", "WEBP", "AVIF", "TIFF"):
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # a quarter turn
    file = io.BytesIO()
    picture.save(file, name, exif=exif)
    file.seek(0)
    image = Image.open(file)
    opened = image.size
    if name == "TIFF":
        print("TIFF header: width", image.tag_v2[WIDTH], "height", image.tag_v2[LENGTH])
        assert (image.tag_v2[WIDTH], image.tag_v2[LENGTH]) == (40, 20)
    image.load()
    seen[name] = (opened, image.size, image.getexif().get(ORIENTATION))
    print(f"{name}: opened {opened}, loaded {image.size}, orientation {seen[name][2]}")

as_stored, turned = ((40, 20), (40, 20), 6), ((20, 40), (20, 40), None)
assert seen.pop("TIFF") == turned
assert all(value == as_stored for value in seen.values())
print("as stated")
PY
