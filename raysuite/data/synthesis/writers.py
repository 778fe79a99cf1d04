"""One chunk of a synthetic data set on disk, in each of the forms."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from raysuite.data.formats.tfrecord import encode_example, write_records
from raysuite.data.processes import Count
from raysuite.data.synthesis.pictures import Painter, Pixels
from raysuite.data.synthesis.plan import Chunk, SyntheticSet
from raysuite.spec.datasets import CIFAR_FILES, IDX_FILES, NAMED

Samples = Iterator[tuple[int, Pixels, int]]
"""Number, pixels [height, width, channels] and label."""


@dataclass(frozen=True)
class Task:
    """What a process must know to write one chunk."""

    synthetic: SyntheticSet
    chunk: Chunk
    folder: Path


@dataclass(frozen=True)
class Written:
    """A chunk as it lies on disk."""

    split: str
    number: int
    images: int
    bytes: int
    """Of its files, indices included."""
    sha256: str
    """Over the bytes of its files in the order of `paths`."""


def write_chunk(task: Task, count: Count) -> Written:
    """Write the files of one chunk, over what may lie there; `count` is told each image.

    Raises OSError where they cannot be written.
    """
    write = {
        "folder": _files,
        "tfrecord": _records,
        "idx": _idx,
        "binary": _cifar_binary,
        "pickle": _cifar_pickle,
    }[task.synthetic.form]
    painter = _painter(task.synthetic)

    def samples() -> Samples:
        for sample in range(task.chunk.first, task.chunk.first + task.chunk.images):
            yield (sample, *painter.picture(task.chunk.split, sample))
            count(1)

    write(task, samples())
    digest, size = hashlib.sha256(), 0
    for path in paths(task.synthetic, task.chunk):
        content = task.folder / path
        size += content.stat().st_size
        with content.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    chunk = task.chunk
    return Written(chunk.split, chunk.number, chunk.images, size, digest.hexdigest())


def paths(synthetic: SyntheticSet, chunk: Chunk) -> Iterator[str]:
    """The files of a chunk, relative to the set's folder."""
    split = chunk.split
    if synthetic.form == "folder":
        painter = _painter(synthetic)
        for sample in range(chunk.first, chunk.first + chunk.images):
            yield image_path(synthetic, chunk, sample, painter.label(split, sample))
    elif synthetic.form == "tfrecord":
        # TensorFlow's ImageNet files begin with "validation"
        name = "validation" if split == "val" else split
        shard = f"{name}-{chunk.number:05d}-of-{chunk.of:05d}"
        yield from (shard, f"{shard}.idx")
    elif synthetic.form == "idx":
        yield from IDX_FILES[split]
    else:
        yield CIFAR_FILES[synthetic.form][split][chunk.number]


def image_path(synthetic: SyntheticSet, chunk: Chunk, sample: int, label: int) -> str:
    """SPLIT/CLASS/NAME; ImageNet's names are like those of ILSVRC."""
    name = synthetic.class_names[label]
    file = f"{sample:08d}.{'png' if synthetic.quality is None else 'jpg'}"
    if synthetic.name == "imagenet":
        train = chunk.split == "train"
        file = f"{name}_{sample}.JPEG" if train else f"ILSVRC2012_val_{sample + 1:08d}.JPEG"
    return f"{chunk.split}/{name}/{file}"


def encode(pixels: Pixels, quality: int | None) -> bytes:
    """A JPEG of that quality, or a PNG."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    if quality is None:
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


@lru_cache(maxsize=1)
def _painter(synthetic: SyntheticSet) -> Painter:
    return Painter(synthetic)


def _files(task: Task, samples: Samples) -> None:
    for sample, pixels, label in samples:
        path = task.folder / image_path(task.synthetic, task.chunk, sample, label)
        content = encode(pixels, task.synthetic.quality)
        try:
            path.write_bytes(content)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _records(task: Task, samples: Samples) -> None:
    first_label = NAMED[task.synthetic.name].first_label
    shard, _ = paths(task.synthetic, task.chunk)
    write_records(
        task.folder / shard,
        (
            encode_example(encode(pixels, task.synthetic.quality), label + first_label)
            for _, pixels, label in samples
        ),
    )


def _idx(task: Task, samples: Samples) -> None:
    """MNIST's files: http://yann.lecun.com/exdb/mnist, section "file formats"."""
    shape = (task.chunk.images, task.synthetic.height, task.synthetic.width)
    images, labels = (task.folder / name for name in paths(task.synthetic, task.chunk))
    with images.open("wb") as pixel_file, labels.open("wb") as label_file:
        pixel_file.write(struct.pack(">HBB3I", 0, 8, 3, *shape))
        label_file.write(struct.pack(">HBBI", 0, 8, 1, shape[0]))
        for _, pixels, label in samples:
            pixel_file.write(pixels.tobytes())
            label_file.write(bytes([label]))


def _planes(pixels: Pixels) -> bytes:
    """All red values, all green, all blue."""
    return pixels.transpose(2, 0, 1).tobytes()


def _cifar_binary(task: Task, samples: Samples) -> None:
    """https://www.cs.toronto.edu/~kriz/cifar.html, "binary version"."""
    (name,) = paths(task.synthetic, task.chunk)
    with (task.folder / name).open("wb") as file:
        for _, pixels, label in samples:
            file.write(bytes([label]) + _planes(pixels))


def _cifar_pickle(task: Task, samples: Samples) -> None:
    """https://www.cs.toronto.edu/~kriz/cifar.html, "python version", with its keys of bytes."""
    (name,) = paths(task.synthetic, task.chunk)
    numbers, labels, rows = [], [], []
    for sample, pixels, label in samples:
        numbers.append(f"{sample:08d}.png".encode())
        labels.append(label)
        rows.append(_planes(pixels))
    batch = {
        b"batch_label": name.encode(),
        b"labels": labels,
        b"data": np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy(),
        b"filenames": numbers,
    }
    with (task.folder / name).open("wb") as file:
        pickle.dump(batch, file, protocol=2)
