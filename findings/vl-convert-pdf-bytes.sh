#!/usr/bin/env bash
# vl-convert: the same SVG, converted to PDF again in the same process, gives other bytes.
#
# Usually expected: a converter without clocks and random numbers in its output gives the same bytes
# for the same input, as its svg_to_png and vegalite_to_svg do; so that a PDF under version control
# changes when its plot does. There is neither a date nor an identifier in the PDF.
# Seen on 2026-11-29 with vl-convert-python 1.9.0: of 40 conversions of one bar chart there are
# several different PDFs, all of the same length: the entries of dictionaries of resources change
# places (`/fo0 1 0 R` before or after `/fo1 2 0 R`). SVG and PNG are the same each time.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  "vl-convert-python==1.9.0"

cat >"$work/convert.py" <<'PY'
from collections.abc import Callable

import vl_convert

SPEC = {
    "data": {"values": [{"workers": "1", "speed": 2}, {"workers": "2", "speed": 3}]},
    "mark": "bar",
    "encoding": {
        "x": {"field": "workers", "type": "ordinal"},
        "y": {"field": "speed", "type": "quantitative"},
    },
}
SVG = vl_convert.vegalite_to_svg(SPEC)


def different(convert: Callable[[], bytes]) -> set[bytes]:
    return {convert() for _ in range(40)}


svgs = different(lambda: vl_convert.vegalite_to_svg(SPEC).encode())
pngs = different(lambda: vl_convert.svg_to_png(SVG))
pdfs = different(lambda: vl_convert.svg_to_pdf(SVG))
first = min(pdfs)
places = sorted({n for pdf in pdfs for n, (a, b) in enumerate(zip(first, pdf)) if a != b})
print("vl-convert", vl_convert.__version__)
print("different of 40:", len(svgs), "SVG,", len(pngs), "PNG,", len(pdfs), "PDF")
assert places, "all PDFs are the same"
for text in sorted({pdf[max(places[0] - 60, 0) : places[0] + 60] for pdf in pdfs}):
    print(text)
assert (len(svgs), len(pngs)) == (1, 1)
assert len({len(pdf) for pdf in pdfs}) == 1, "their lengths differ"
PY
"$work/venv/bin/python" "$work/convert.py"
