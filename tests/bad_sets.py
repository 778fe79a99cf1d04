"""Small sets as they should not be: which sample is spoiled, how, and what is then said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysuite.data.formats.tfrecord import decode_example, encode_example, write_records
from raysuite.spec.data_set import DataOptions
from tests.small_sets import FEATURES, SmallSet, write

BAD = 13
"""The training sample that is spoiled; its neighbours are whole."""


def photographs(root: Path, **options: Any) -> SmallSet:
    """An image folder; training shows random parts, which need not reach an image's end."""
    return _with(write("image_folder-folder", root, image_size=8), options)


def shards(root: Path, **options: Any) -> SmallSet:
    """TFRecords with a feature map: three shards for training, one for validation."""
    return _with(write("tfrecord-tfrecord", root, image_size=8), options)


def _with(small: SmallSet, options: dict[str, Any]) -> SmallSet:
    given = small.data.model_dump() | {"augment": "resized_crop_flip"} | options
    return SmallSet(DataOptions(**given), small.facts, small.images, small.labels)


def image(small: SmallSet, sample: int = BAD, split: str = "train") -> Path:
    """The file of a sample."""
    return sorted(Path(small.data.path or "").glob(f"{split}/*/*"))[sample]


def record(small: SmallSet, sample: int = BAD) -> tuple[Path, int, int]:
    """Shard, offset and size of a training record."""
    for shard in sorted(Path(small.data.path or "").glob("learn*.rec")):
        lines = shard.with_suffix(".idx").read_text().splitlines()
        if sample < len(lines):
            offset, size = map(int, lines[sample].split())
            return shard, offset, size
        sample -= len(lines)
    raise AssertionError(f"no record {sample}")


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in the middle": (lambda data: data[: len(data) // 2], "a JPEG cut short: it has no end"),
    "end cut off": (lambda data: data[:-2], "a JPEG cut short: it has no end"),
    "text": (
        lambda data: b"no image at all",
        "none of JPEG, PNG, WEBP, BMP, GIF, TIFF: it begins with b'no image'",
    ),
    "empty": (lambda data: b"", "none of JPEG, PNG"),
}
"""How a file is spoiled, and why it then cannot be read."""


def _flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


RECORDS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "length": (_flipped(0), "the checksum of the record's length differs"),
    "checksum of the length": (_flipped(8), "the checksum of the record's length differs"),
    "data": (_flipped(40), "the checksum of the record's data differs"),
    "checksum of the data": (
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        "the checksum of the record's data differs",
    ),
    "zeros": (lambda data: bytes(len(data)), "the checksum of the record's length differs"),
}
"""The same of a record with its headers."""


def spoil_file(small: SmallSet, how: str, sample: int = BAD) -> tuple[str, str]:
    """Spoil an image; where it lies and why it cannot be read."""
    path = image(small, sample)
    spoil, reason = FILES[how]
    path.write_bytes(spoil(path.read_bytes()))
    return str(path), reason


def spoil_record(small: SmallSet, how: str, sample: int = BAD) -> tuple[str, str]:
    """Spoil a record; where it lies and why it cannot be read."""
    shard, offset, size = record(small, sample)
    spoil, reason = RECORDS[how]
    whole = shard.read_bytes()
    end = offset + size
    shard.write_bytes(whole[:offset] + spoil(whole[offset:end]) + whole[end:])
    return f"{shard} at byte {offset}", reason


def relabel(small: SmallSet, label: int, sample: int = BAD) -> str:
    """Give a record another label, as it is written there; where it then lies."""
    shard, offset, _ = record(small, sample)
    lines = shard.with_suffix(".idx").read_text().splitlines()
    content, names = shard.read_bytes(), (FEATURES["image"], FEATURES["label"])
    examples = []
    for line in lines:
        begin, size = map(int, line.split())
        data = content[begin + 12 : begin + size - 4]
        picture, old = decode_example(data, "here", *names)
        examples.append(encode_example(picture, label if begin == offset else old, *names))
    write_records(shard, examples)
    return f"{shard} at byte {offset}"
