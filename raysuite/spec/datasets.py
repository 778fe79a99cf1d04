"""The data sets that a spec can give by name: their counts, layouts and origin.

Both `plan`, which counts the files on disk, and `data`, which reads them, use this table. The table
needs neither torch nor NumPy.
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
"""Suffixes of image files, in lower or upper case; other files are ignored."""


@dataclass(frozen=True)
class DatasetFacts:
    """The facts about a data set that a plan needs: counts, classes and the shape of an image."""

    train_samples: int
    val_samples: int
    classes: int
    channels: int
    image_size: int
    """Side in pixels of the square images that are the network's input."""
    passed_over: int = 0
    """Number of ignored files and folders in an image folder, without hidden ones."""
    class_names: tuple[str, ...] = ()
    """Names of the classes by label; empty if unknown, as in plans of earlier versions."""
    sequence: Annotated[int, Field(exclude_if=lambda tokens: not tokens)] = 0
    """Tokens in a sample, with `classes` as the vocabulary size; 0 if samples are not tokens."""
    inputs: Annotated[str, Field(exclude_if=lambda text: not text)] = ""
    """Description of samples that are passed to the network unchanged: `"float32[3]"` for one
    tensor, or a JSON list or object of such types for several. Empty for images and tokens."""

    @property
    def samples_words(self) -> str:
        """Description of the network's inputs, such as `sequences of 128 tokens`."""
        if self.sequence:
            return f"sequences of {self.sequence} tokens"
        side = self.image_size
        return f"images of {side} x {side} pixels" if self.channels else "samples"

    @property
    def image_values(self) -> int:
        """Number of values in an image, over all channels."""
        return self.channels * self.image_size**2


DIGITS = DatasetFacts(train_samples=1437, val_samples=360, classes=10, channels=1, image_size=8)
"""scikit-learn's 1,797 handwritten digits (UCI, E. Alpaydin and C. Kaynak, 1998). Every fifth digit
is held out for validation."""
DIGITS_MEAN, DIGITS_STD = (0.3058,), (0.3761,)
"""Mean and standard deviation of the training split at 8 x 8 pixels, grey, in 0..1; they are used
for other image sizes too. A test recomputes them."""


@dataclass(frozen=True)
class NamedSet:
    """A published data set, and its defaults for a spec."""

    facts: DatasetFacts
    """Its official counts, and the image size that networks usually get."""
    formats: tuple[Format, ...]
    """Its formats on disk; the first is the default."""
    mean: tuple[float, ...]
    """Mean per channel of the training pixels, in 0..1."""
    std: tuple[float, ...]
    augment: Augment
    fit: Fit
    """Whether validation images are stretched or center-cropped to the square input size."""
    origin: str | None
    """The source of the official files, and their names; None if there are no such files."""
    first_label: int = 0
    """Label of the first class in its TFRecords."""


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images, RGB in 0..1, as torchvision's
pretrained models expect them: https://docs.pytorch.org/vision/stable/models.html"""

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
        origin=None,  # DDLBench (Jansen et al. 2020) makes this set from noise
    ),
}

KNOWN = {"digits": DIGITS} | {name: known.facts for name, known in NAMED.items()}
"""Data sets whose counts, classes and image shape are known without reading files."""

BYTES = 256
"""Vocabulary size of text: each byte is a token."""
IGNORED_PIXEL = 255
"""Value of mask pixels that loss and metrics ignore, as in Pascal VOC and Cityscapes."""
IGNORED_TOKEN = -100
"""Value of targets that do not count in the loss: `ignore_index` of torch's cross-entropy."""
TOKENS = {"text": "text", "python_topics": "text", "tokens": "tokens"}
"""Data set of tokens -> its format on disk."""

DATASETS = (*KNOWN, "image_folder", "tfrecord", *TOKENS)


def cache_dir() -> Path:
    """The folder for files that raysuite can recreate: $RAYSUITE_CACHE, or ~/.cache/raysuite."""
    return Path(os.environ.get("RAYSUITE_CACHE") or "~/.cache/raysuite").expanduser()


def default_path(name: str, form: str, root: str | None = None) -> Path:
    """The default folder of a named data set, to which `raysuite data make` writes: NAME-FORMAT in
    `root`; if this is None, in $RAYSUITE_DATA; if this is not set either, in the cache's folder
    `datasets`."""
    folder = root or os.environ.get("RAYSUITE_DATA") or cache_dir() / "datasets"
    return Path(folder).expanduser() / f"{name}-{form}"


IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "val": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""File names of MNIST's images and labels for each split; .gz may be appended."""

CIFAR_FILES = {
    "binary": {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "val": ["test_batch.bin"]},
    "pickle": {"train": [f"data_batch_{i}" for i in range(1, 6)], "val": ["test_batch"]},
}
CIFAR_FOLDERS = {"binary": "cifar-10-batches-bin", "pickle": "cifar-10-batches-py"}
"""Format -> the folder in CIFAR-10's archive. The files may also be directly in `data.path`."""

RECORD_PATTERNS = {"train": "train*-of-*", "val": "val*-of-*"}
"""TFRecord shards of each split, as in TensorFlow's and DALI's examples, with *.idx next to
them."""


def other_class(known: Sequence[str], found: Sequence[str]) -> int | None:
    """The first label whose class names differ between `known` and `found`; None if there is none.

    Unknown names match any names. Names are unknown if their list is empty, or if it has only the
    class numbers and both lists have the same length.
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
    """Raise DataError if the class names `known` and `found` differ. In the message, `whose` is the
    owner of the names `known`, and `where` the place of the names `found`."""
    label = other_class(known, found)
    if label is not None:
        now, then = (
            repr(names[label]) if label < len(names) else "missing" for names in (found, known)
        )
        raise DataError(
            f"{where}: class {label} is {now}, but {then} in {whose}; each label needs the same "
            f"class name in both: {remedy}"
        )


def distinct_names(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return the class names `names`. Raises DataError if two of them are equal."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{where}: two classes are called {twice!r}; give each a name of its own")
    return names


CLASSES_FILE = "classes.txt"
"""Name of the file that lists the names of the classes, one per line, ordered by label. The file is
next to the TFRecord shards."""
