"""Tiny data sets in every form that raysuite reads, with pixels and labels that a test knows.

`write(kind, folder)` for each of KINDS. Smooth pictures, every one different; lossless where the
form allows it, JPEG otherwise (the pixels told are then those that Pillow decodes).
"""

from __future__ import annotations

import gzip
import io
import struct
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from numpy.typing import NDArray
from PIL import Image

from raysuite.data.formats.tfrecord import encode_example, write_records
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts

Pixels = NDArray[np.uint8]
SYNSETS = ("n01440764", "n02084071", "n03445777")
DEVKIT = "ILSVRC2012_devkit_t12/data"
DEVKIT_IDS = (2, 3, 1)
"""The devkit numbers synsets in an order of its own: the ILSVRC2012_ID of each of SYNSETS."""
COUNTS = {"train": 23, "val": 9}
"""Numbers that no number of ranks up to four divides."""
CLASSES = {
    "mnist": 10,
    "cifar10": 10,
    "imagenet": 3,
    "highres": 3,
    "image_folder": 4,
    "tfrecord": 4,
    "own": 4,
}
SIDES = {"mnist": 28, "cifar10": 32, "imagenet": 96, "highres": 512, "image_folder": 24}


@dataclass(frozen=True)
class SmallSet:
    """A set on disk: what names it, what a plan must find, and its samples in the order in which
    they are numbered."""

    data: DataOptions
    facts: DatasetFacts
    images: dict[str, list[Pixels]]
    """Per split: [H, W, C] as decoded from the disk, before any view is cut."""
    labels: dict[str, list[int]]


KINDS = (
    "mnist-idx",
    "mnist-idx-gz",
    "mnist-folder",
    "mnist-tfrecord",
    "cifar10-binary",
    "cifar10-pickle",
    "cifar10-folder",
    "cifar10-tfrecord",
    "imagenet-folder",
    "imagenet-folder-devkit",
    "imagenet-folder-kaggle",
    "imagenet-tfrecord",
    "highres-folder",
    "highres-tfrecord",
    "image_folder-folder",
    "tfrecord-tfrecord",
    "own-own",
)


def write(kind: str, root: Path, image_size: int | None = None) -> SmallSet:
    """Write a set of COUNTS images below `root`. `image_size` is the network's, not the files'."""
    name, form, *variant = kind.split("-")
    channels = 1 if name == "mnist" else 3
    classes = CLASSES[name]
    side = SIDES.get(name, 24)
    labels = {split: labels_of(count, classes, split) for split, count in COUNTS.items()}
    images = {
        split: [
            picture(_seed(split, number), *_size(name, number, side), channels)
            for number in range(count)
        ]
        for split, count in COUNTS.items()
    }
    facts = DatasetFacts(
        COUNTS["train"],
        COUNTS["val"],
        classes,
        channels,
        image_size or _network_side(name),
        class_names=names_of(name, form, classes),
    )
    options: dict[str, Any] = {"name": name, "format": form, "path": str(root)}
    if image_size is not None or name in ("image_folder", "tfrecord", "own"):
        options["image_size"] = facts.image_size
    whole = SmallSet(DataOptions(name="digits"), facts, images, labels)
    if form == "own":
        options = {"name": "tests.small_sets:OwnSet", "image_size": facts.image_size}
        return replace(whole, data=DataOptions(**options, options={"counts": COUNTS}))
    if form == "idx":
        write_idx(root / "MNIST" / "raw" if variant else root, whole, gz=bool(variant))
    elif form in ("binary", "pickle"):
        write_cifar(root, whole, form)
    elif form == "folder":
        whole = write_folder(root, whole, name, variant[0] if variant else "plain")
    else:
        whole = write_tfrecord(root, whole, name)
        if name == "tfrecord":
            options |= {"classes": classes, "features": FEATURES}
    return replace(whole, data=DataOptions(**options))


def names_of(name: str, form: str, classes: int) -> tuple[str, ...]:
    """The names of the classes, by label, as the files of the form have them."""
    if name == "own":
        return OwnSet.classes
    if form in ("binary", "pickle"):
        return ("airplane", "automobile", "bird", "cat", "deer",
                "dog", "frog", "horse", "ship", "truck")  # fmt: skip
    return tuple(class_name(name, label) for label in range(classes))


def labels_of(count: int, classes: int, split: str) -> list[int]:
    """Every class at least once (where `count` allows), in no order."""
    generator = np.random.default_rng(len(split))
    return generator.permutation(np.arange(count) % classes).tolist()


def picture(seed: int, width: int, height: int, channels: int) -> Pixels:
    """[height, width, channels], smooth."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels.reshape(height, width, channels)


def _seed(split: str, number: int) -> int:
    return number + (1000 if split == "val" else 0)


def _size(name: str, number: int, side: int) -> tuple[int, int]:
    """Photographs have many sizes; the others have one."""
    if name not in ("imagenet", "image_folder", "tfrecord"):
        return side, side
    return side + 7 * (number % 5), side + 5 * (number % 3)


def _network_side(name: str) -> int:
    return {"mnist": 28, "cifar10": 32, "imagenet": 224, "highres": 512}.get(name, 16)


# IDX: http://yann.lecun.com/exdb/mnist (section "file formats")


def idx_bytes(array: Pixels) -> bytes:
    """An IDX file of unsigned bytes."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def write_idx(folder: Path, whole: SmallSet, gz: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, prefix in (("train", "train"), ("val", "t10k")):
        files = {
            f"{prefix}-images-idx3-ubyte": np.stack(whole.images[split])[..., 0],
            f"{prefix}-labels-idx1-ubyte": np.array(whole.labels[split], np.uint8),
        }
        for name, array in files.items():
            if gz:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
            else:
                (folder / name).write_bytes(idx_bytes(array))


# CIFAR-10: https://www.cs.toronto.edu/~kriz/cifar.html


def write_cifar(root: Path, whole: SmallSet, form: str) -> None:
    """The five training batches, unequal here, and the test batch, in the archive's folder."""
    folder = root / ("cifar-10-batches-bin" if form == "binary" else "cifar-10-batches-py")
    folder.mkdir(parents=True, exist_ok=True)
    parts = np.array_split(np.arange(COUNTS["train"]), 5)
    batches = [("train", ids, f"data_batch_{i}") for i, ids in enumerate(parts, 1)]
    for split, ids, name in [*batches, ("val", np.arange(COUNTS["val"]), "test_batch")]:
        planes = np.stack([whole.images[split][i].transpose(2, 0, 1).ravel() for i in ids])
        labels = np.array([whole.labels[split][i] for i in ids], np.uint8)
        if form == "binary":
            rows = np.concatenate([labels[:, None], planes], axis=1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            (folder / name).write_bytes(python2_pickle(labels.tolist(), planes))


def python2_pickle(labels: list[int], planes: Pixels) -> bytes:
    """A batch as the official archive holds it: protocol 2, written by Python 2 and an old NumPy,
    whose module was called numpy.core."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = planes.tobytes()
    dtype = (
        b"cnumpy\ndtype\nq\x0a" + text(b"u1") + b"K\x00K\x01\x87Rq\x0b(K\x03" + text(b"|")
        + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    )  # fmt: skip
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85" + text(b"b")
        + b"\x87Rq\x09(K\x01" + number(planes.shape[0]) + number(planes.shape[1]) + b"\x86"
        + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    names = b"".join(text(b"picture_%d.png" % i) for i in range(len(labels)))
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + b"q\x02" + text(b"training batch") + b"q\x03"
        + text(b"labels") + b"q\x04]q\x05(" + b"".join(b"K" + bytes([i]) for i in labels) + b"e"
        + text(b"data") + b"q\x06" + array + text(b"filenames") + b"]q\x0c(" + names + b"eu."
    )  # fmt: skip


# Folders


def write_folder(root: Path, whole: SmallSet, name: str, layout: str) -> SmallSet:
    """PNG for small sets; ImageNet's JPEGs in one of its three layouts, the validation images of
    `devkit` and `kaggle` in one flat folder with their classes in a file."""
    suffix = {"imagenet": "JPEG", "highres": "jpg", "image_folder": "jpg"}.get(name, "png")
    top = root / "ILSVRC" / "Data" / "CLS-LOC" if layout == "kaggle" else root
    decoded: dict[str, list[Pixels]] = {}
    labels: dict[str, list[int]] = {}
    for split, images in whole.images.items():
        flat = split == "val" and layout != "plain"
        order = np.argsort(whole.labels[split], kind="stable").tolist()  # by class, then by name
        labels[split] = [whole.labels[split][number] for number in order]
        decoded[split] = []
        for number, label in zip(order, labels[split], strict=True):
            folder = top / split if flat else top / split / class_name(name, label)
            folder.mkdir(parents=True, exist_ok=True)
            stem = f"ILSVRC2012_{split}_{number + 1:08d}" if name == "imagenet" else f"{number:05d}"
            content = encoded(images[number], suffix)
            (folder / f"{stem}.{suffix}").write_bytes(content)
            decoded[split].append(decode(content, whole.facts.channels))
    if layout == "devkit":
        write_devkit(root, whole.labels["val"])
    if layout == "kaggle":
        write_kaggle(root, whole.labels["val"])
    return replace(whole, images=decoded, labels=labels)


def class_name(name: str, label: int) -> str:
    if name in ("imagenet", "highres"):
        return SYNSETS[label]
    return str(label)


def write_devkit(root: Path, labels: list[int]) -> None:
    """The numbers of the validation images' classes, by file name, and
    the synset of each number; inner nodes of WordNet stand in the same table."""
    folder = root / DEVKIT
    folder.mkdir(parents=True)
    numbers = "".join(f"{DEVKIT_IDS[label]}\n" for label in labels)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(numbers)
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("gloss", "O")]
    table = np.array(
        [(number, SYNSETS[DEVKIT_IDS.index(number)], "a", "b", 0) for number in (1, 2, 3)]
        + [(4, "n00001740", "entity", "c", 3)],
        dtype=[*kinds, ("num_children", "O")],
    )
    scipy.io.savemat(folder / "meta.mat", {"synsets": table.reshape(-1, 1)})


def write_kaggle(root: Path, labels: list[int]) -> None:
    rows = [
        f"ILSVRC2012_val_{number:08d},{SYNSETS[label]} 1 2 3 4 \n"
        for number, label in enumerate(labels, 1)
    ]
    order = np.random.default_rng(0).permutation(len(rows))
    text = "ImageId,PredictionString\n" + "".join(rows[i] for i in order)
    (root / "LOC_val_solution.csv").write_text(text)


def encoded(pixels: Pixels, suffix: str) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.save(buffer, "PNG") if suffix == "png" else image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def decode(content: bytes, channels: int) -> Pixels:
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels.reshape(*pixels.shape[:2], channels)


# TFRecords

FEATURES = {
    "image": "jpg",
    "label": "target",
    "first_label": 5,
    "train": "learn*.rec",
    "val": "check.rec",
}
"""The feature map of the set whose names are its owner's own."""


def write_tfrecord(root: Path, whole: SmallSet, name: str) -> SmallSet:
    """Shards in TensorFlow's layout; ImageNet's have no suffix, labels from 1, and their indices
    in idx_files/, as DALI's examples keep them."""
    suffix = "png" if name in ("mnist", "cifar10") else "JPEG"
    first = {"imagenet": 1, "tfrecord": FEATURES["first_label"]}.get(name, 0)
    names = (FEATURES["image"], FEATURES["label"]) if name == "tfrecord" else ()
    root.mkdir(parents=True, exist_ok=True)
    decoded: dict[str, list[Pixels]] = {}
    for split, images in whole.images.items():
        contents = [encoded(pixels, suffix) for pixels in images]
        decoded[split] = [decode(content, whole.facts.channels) for content in contents]
        shards = 1 if name == "tfrecord" and split == "val" else 3
        for shard, ids in enumerate(np.array_split(np.arange(len(contents)), shards)):
            path = root / _shard_name(name, split, shard, shards)
            labels = [whole.labels[split][i] + first for i in ids]
            pairs = zip([contents[i] for i in ids], labels, strict=True)
            examples = [encode_example(*pair, *names) for pair in pairs]
            write_records(path, examples)
            if name == "imagenet":
                (root / "idx_files").mkdir(exist_ok=True)
                path.with_suffix(".idx").rename(root / "idx_files" / f"{path.name}.idx")
    if name in ("imagenet", "highres"):
        (root / "classes.txt").write_text("".join(f"{synset}\n" for synset in SYNSETS))
    return replace(whole, images=decoded)


def _shard_name(name: str, split: str, shard: int, shards: int) -> str:
    if name == "tfrecord":
        return f"learn{shard}.rec" if split == "train" else "check.rec"
    stem = "validation" if split == "val" else "train"
    return f"{stem}-{shard:05d}-of-{shards:05d}" + ("" if name == "imagenet" else ".tfrecord")


class OwnSet:
    """A person's own set, map-style: `OwnSet(split=...)[i]` is an image and its label."""

    classes = ("north", "east", "south", "west")

    def __init__(self, split: str, counts: dict[str, int] = COUNTS) -> None:
        self._labels = labels_of(counts[split], len(self.classes), split)
        self._split = split

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, sample: int) -> tuple[Any, int]:
        pixels = picture(_seed(self._split, sample), 24, 24, 3)
        kinds = [lambda: Image.fromarray(pixels), lambda: pixels, lambda: encoded(pixels, "png")]
        return kinds[sample % 3](), self._labels[sample]


def leaving(split: str) -> OwnSet:
    """As a module with a command line of its own might."""
    sys.exit(0)
