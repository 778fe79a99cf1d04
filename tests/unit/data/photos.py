"""A small image folder, its conversion, and what lies in the shards."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

from raysuite.data.convert import Policy, Summary, convert, plan_conversion
from raysuite.data.formats.tfrecord import _Example, read_index, read_record

SYNSETS = ("n01440764", "n01443537", "n02084071")


def image(seed: int, width: int = 20, height: int = 12, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def write_folder(root: Path, classes: tuple[str, ...] = SYNSETS, train: int = 9) -> Path:
    for split, count in (("train", train), ("val", 3)):
        for label, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                data = image(1000 * label + number + 500 * (split == "val"))
                (root / split / name / f"{name}_{number}.JPEG").write_bytes(data)
    return root


def run(
    source: Path,
    target: Path,
    shards: int | None = 4,
    shorter_side: int | None = None,
    bad: Policy = "error",
) -> Summary:
    return convert(plan_conversion(source, target, shards, shorter_side), 1, bad)


def records(path: Path) -> list[dict[str, bytes | int]]:
    """The features of every record of a shard, read by its index."""
    found = []
    descriptor = os.open(path, os.O_RDONLY)
    for offset, size in read_index(path.with_suffix(".idx")).tolist():
        example = _Example.FromString(read_record(descriptor, offset, size, str(path)))
        found.append(
            {
                name: (value.bytes_list.value or value.int64_list.value)[0]
                for name, value in example.features.feature.items()
            }
        )
    os.close(descriptor)
    return found


def shards(target: Path, split: str) -> list[Path]:
    return sorted(path for path in target.glob(f"{split}-*") if path.suffix != ".idx")


def digests(folder: Path) -> dict[str, str]:
    """Of shards and indices."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if "-of-" in path.name
    }
