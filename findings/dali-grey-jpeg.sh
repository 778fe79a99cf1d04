#!/usr/bin/env bash
# DALI: decoding a colour JPEG to GRAY is not the grey of the decoded RGB.
#
# Usually expected: `decoders.image(output_type=GRAY)` equals `decoders.image(output_type=RGB)`
# followed by `color_space_conversion` to GRAY, up to rounding (one level), as it does for PNG.
# Seen on 2026-11-27 with nvidia-dali-cuda120 2.4.0 on a CPU: GRAY is the luma plane that the file
# stores. RGB was clipped to 0..255 first, so saturated colours of a lossy file differ: up to 31
# of 255 levels at quality 10, 19 at quality 75 with halved chroma. Pillow's
# `Image.open(file).convert("L")` agrees with the second of the two, `draft("L", ...)` with the
# first. Training on one and serving with the other changes the input.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  nvidia-dali-cuda120==2.4.0 pillow==13.0.0 numpy==2.4.6

"$work/venv/bin/python" - <<'PY'
import io

import numpy as np
import nvidia.dali as dali
import PIL
from nvidia.dali import fn, pipeline_def, types
from PIL import Image

print("DALI", dali.__version__, "Pillow", PIL.__version__)
y, x = np.mgrid[0:128, 0:128]
picture = np.stack([255 * (x > 64), 128 + 127 * np.sin(y / 9), 255 - x * 2], -1)
picture = Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def decode(data):
    """Return GRAY, and the GRAY of RGB, both of shape (128, 128)."""

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        raw = fn.external_source(source=lambda: [np.frombuffer(data, np.uint8)], batch=True)
        rgb = fn.decoders.image(raw, device="cpu", output_type=types.RGB)
        grey = fn.decoders.image(raw, device="cpu", output_type=types.GRAY)
        return grey, fn.color_space_conversion(rgb, image_type=types.RGB, output_type=types.GRAY)

    pipe = pipeline()
    pipe.build()
    return [np.array(out[0])[..., 0].astype(int) for out in pipe.run()]


seen = {}
for name, options in {
    "PNG": {"format": "PNG"},
    "JPEG, quality 75, 4:2:0": {"format": "JPEG", "quality": 75, "subsampling": 2},
    "JPEG, quality 10, 4:4:4": {"format": "JPEG", "quality": 10, "subsampling": 0},
}.items():
    file = io.BytesIO()
    picture.save(file, **options)
    direct, by_rgb = decode(file.getvalue())
    luma = Image.open(file)
    luma.draft("L", luma.size)
    luma = np.asarray(luma.convert("L")).astype(int)
    converted = np.asarray(Image.open(file).convert("L")).astype(int)
    seen[name] = int(abs(direct - by_rgb).max())
    print(f"{name}: GRAY against grey of RGB {seen[name]}, against Pillow's luma"
          f" {abs(direct - luma).max()}; grey of RGB against Pillow's convert"
          f" {abs(by_rgb - converted).max()}")
    assert abs(direct - luma).max() <= 1
    assert abs(by_rgb - converted).max() <= 1

assert seen["PNG"] <= 1
assert seen["JPEG, quality 75, 4:2:0"] > 10
assert seen["JPEG, quality 10, 4:4:4"] > 20
print("as stated")
PY
