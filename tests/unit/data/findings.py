"""What tests of `raysuite.data.set_check` share: findings by kind, damage, and pictures."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from raysuite.data.set_check import Finding, Report


def errors(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if not finding.note]


def notes(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.note]


def only(report: Report) -> Finding:
    (finding,) = errors(report)
    assert report.errors == 1
    return finding


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (24, 24)) -> bytes:
    shape = (size[1], size[0], 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    buffer = io.BytesIO()
    if mode == "I;16":
        Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(buffer, kind)
    else:
        Image.fromarray(pixels).convert(mode).save(buffer, kind)
    return buffer.getvalue()
