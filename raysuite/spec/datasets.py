"""The data sets that raysuite knows by name: their counts, their layouts and their origin.

Both `plan`, which counts what is on disk, and `data`, which reads it, go by this table; neither
torch nor NumPy is needed for it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from raysuite.errors import DataError

Format = Literal["folder", "tfrecord", "idx", "binary", "pickle", "text", "tokens"]
Augment = Literal["none", "pad_crop_flip", "resized_crop_flip"]
Fit = Literal["stretch", "center"]
SPLITS = ("train", "val")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""Files that count as images, in upper or lower case; others are passed over."""


@dataclass(frozen=True)
class DatasetFacts:
    """What a plan must know of a data set: counts, classes and the shape of an image."""

    train_samples: int
    val_samples: int
    classes: int
    channels: int
    image_size: int
    """Side of the square images that the network sees, in pixels."""
    passed_over: int = 0
    """Entries of an image folder's splits that are neither images nor hidden."""
    class_names: tuple[str, ...] = ()
    """By label; empty where they are not known, as in plans of earlier versions."""
    sequence: Annotated[int, Field(exclude_if=lambda tokens: not tokens)] = 0
    """Tokens of a sample, of which `classes` are the vocabulary; 0: samples are no tokens."""
    inputs: Annotated[str, Field(exclude_if=lambda text: not text)] = ""
    """Of samples that are given to the network as they are: `"float32[3]"` for one tensor, a list
    or an object of such for several, as JSON. Empty for images and for tokens."""

    @property
    def samples_words(self) -> str:
        """What samples are, as the network is given them."""
        if self.sequence:
            return f"sequences of {self.sequence} tokens"
        side = self.image_size
        return f"images of {side} x {side} pixels" if self.channels else "samples"

    @property
    def image_values(self) -> int:
        """Numbers that an image consists of, of all channels."""
        return self.channels * self.image_size**2


DIGITS = DatasetFacts(train_samples=1437, val_samples=360, classes=10, channels=1, image_size=8)
"""scikit-learn's 1,797 handwritten digits (UCI, E. Alpaydin and C. Kaynak, 1998), one in five
held out for validation."""
DIGITS_MEAN, DIGITS_STD = (0.3058,), (0.3761,)
"""Of its training split at 8 x 8 pixels, grey, in 0..1; used at every size. A test recomputes."""


@dataclass(frozen=True)
class NamedSet:
    """A published data set, and how raysuite treats it unless a spec sets it."""

    facts: DatasetFacts
    """Its official counts, and the size at which networks see it."""
    formats: tuple[Format, ...]
    """Its formats on disk; the first is the default."""
    mean: tuple[float, ...]
    """Per channel, of training pixels in 0..1."""
    std: tuple[float, ...]
    augment: Augment
    fit: Fit
    """How validation images of another size become square: stretched, or the centre of them."""
    origin: str | None
    """Where the official files come from, and what they are called; None: there are none."""
    first_label: int = 0
    """The number of the first class in its TFRecords."""


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's training images, RGB in 0..1, as torchvision's pretrained models expect them:
https://docs.pytorch.org/vision/stable/models.html"""

NAMED: dict[str, NamedSet] = {
    "mnist": NamedSet(
        DatasetFacts(60_000, 10_000, 10, channels=1, image_size=28),
        ("idx", "folder", "tfrecord"),
        mean=(0.1307,),
        std=(0.3081,),
        augment="none",
        fit="stretch",
        origin="the four files train-images-idx3-ubyte, train-labels-idx1-ubyte, "
        "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz, from "
        "https://ossci-datasets.s3.amazonaws.com/mnist",
    ),
    "cifar10": NamedSet(
        DatasetFacts(50_000, 10_000, 10, channels=3, image_size=32),
        ("binary", "pickle", "folder", "tfrecord"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        augment="pad_crop_flip",
        fit="stretch",
        origin="cifar-10-binary.tar.gz (or cifar-10-python.tar.gz), unpacked, from "
        "https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "imagenet": NamedSet(
        DatasetFacts(1_281_167, 50_000, 1000, channels=3, image_size=224),
        ("folder", "tfrecord"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        augment="resized_crop_flip",
        fit="center",
        origin="ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, unpacked into train/SYNSET "
        "and val/SYNSET, from https://image-net.org (an account is needed)",
        first_label=1,
    ),
    "highres": NamedSet(
        DatasetFacts(50_000, 10_000, 1000, channels=3, image_size=512),
        ("folder", "tfrecord"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        augment="none",
        fit="stretch",
        origin=None,  # DDLBench (Jansen et al. 2020) makes it of noise
    ),
}

KNOWN = {"digits": DIGITS} | {name: known.facts for name, known in NAMED.items()}
"""Sets whose shape needs no look at their files."""

BYTES = 256
"""The vocabulary of text, whose tokens are bytes."""
IGNORED_PIXEL = 255
"""A pixel of a mask that does not count, as in Pascal VOC and Cityscapes."""
IGNORED_TOKEN = -100
"""A target that does not count in the loss: `ignore_index` of torch's cross-entropy."""
TOKENS = {"text": "text", "python_topics": "text", "tokens": "tokens"}
"""Data sets of tokens -> their format on disk."""

DATASETS = (*KNOWN, "image_folder", "tfrecord", *TOKENS)


def cache_dir() -> Path:
    """Where raysuite keeps what it can make again: $RAYSUITE_CACHE, or ~/.cache/raysuite."""
    return Path(os.environ.get("RAYSUITE_CACHE") or "~/.cache/raysuite").expanduser()


def default_path(name: str, form: str, root: str | None = None) -> Path:
    """Where `raysuite data make` writes a named set, and where a spec without a path looks: below
    `root`, $RAYSUITE_DATA, or the cache's `datasets` folder."""
    folder = root or os.environ.get("RAYSUITE_DATA") or cache_dir() / "datasets"
    return Path(folder).expanduser() / f"{name}-{form}"


IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "val": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""MNIST's images and labels of each split; each may end in .gz."""

CIFAR_FILES = {
    "binary": {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "val": ["test_batch.bin"]},
    "pickle": {"train": [f"data_batch_{i}" for i in range(1, 6)], "val": ["test_batch"]},
}
CIFAR_FOLDERS = {"binary": "cifar-10-batches-bin", "pickle": "cifar-10-batches-py"}
"""The folder that CIFAR-10's archives unpack into; the files may also be in PATH itself."""

RECORD_PATTERNS = {"train": "train*-of-*", "val": "val*-of-*"}
"""TFRecord shards of each split, as TensorFlow's and DALI's examples name them; *.idx beside."""


def other_class(known: Sequence[str], found: Sequence[str]) -> int | None:
    """The first label whose class has another name in `found`; None where there is none.

    Nothing differs from names that are not known: an empty list, or the bare numbers of classes
    beside as many names that are no numbers.
    """
    if not known or not found:
        return None
    bare = any(list(names) == [str(n) for n in range(len(names))] for names in (known, found))
    named = not all(name.isdecimal() for name in (*known, *found))
    if bare and named and len(known) == len(found):
        return None
    pairs = enumerate(zip_longest(known, found))
    return next((label for label, (one, other) in pairs if one != other), None)


def match_classes(
    known: Sequence[str], whose: str, found: Sequence[str], where: str, remedy: str
) -> None:
    """Raise DataError with the first names that differ, unless each label means one class in both:
    in `known`, which are those of `whose`, and in `found`, which are `where`."""
    label = other_class(known, found)
    if label is not None:
        now, then = (
            repr(names[label]) if label < len(names) else "missing" for names in (found, known)
        )
        raise DataError(
            f"{where}: class {label} is {now}, and {then} in {whose}; labels have to mean the same "
            f"classes, by name: {remedy}"
        )


def distinct_names(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The names of classes. Raises DataError where two are equal."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{where}: two classes are called {twice!r}; give each a name of its own")
    return names


CLASSES_FILE = "classes.txt"
"""Beside TFRecord shards: the names of the classes, one a line, in the order of their labels."""
