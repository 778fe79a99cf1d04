"""SyntheticSet: all parameters of a synthetic set, determined before any pixel is computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

from raysuite.data.formats import cifar
from raysuite.data.prepared import Split
from raysuite.errors import UserError
from raysuite.spec.datasets import CIFAR_FILES, NAMED, Format, NamedSet

Content = Literal["natural", "noise"]
Size = tuple[int, int]

SIZES: dict[str, Size] = {
    "mnist": (28, 28),
    "cifar10": (32, 32),
    "imagenet": (500, 375),
    "highres": (512, 512),
}
"""Width and height in pixels. ImageNet's images have many sizes; this is the most common one."""

_SIDES = (8, 2048)
_QUALITY = {"natural": 88, "noise": 75}
"""JPEG quality. With 88, images of 500 x 375 pixels have about 100 KB; 75 is Pillow's default, as
used by DDLBench: https://github.com/sara-nl/DDLBench benchmark/generate_synthetic_data.py"""
_PER_SHARD = {"train": 1251, "val": 391}
"""Images per TFRecord shard, as in ImageNet's 1,024 training and 128 validation shards."""
_PER_FOLDER_CHUNK = 256
_PER_CLASS = 10
"""Smallest mean number of training images per class, unless the number of classes is given: with
too few images, a set with more than ten classes gets fewer classes."""


@dataclass(frozen=True)
class Chunk:
    """A part of a set that one task writes. If the task's process is killed, the whole chunk is
    written again."""

    split: Split
    number: int
    of: int
    """The number of chunks in the split."""
    first: int
    """The index, in the split, of the chunk's first sample."""
    images: int


@dataclass(frozen=True)
class SyntheticSet:
    """All parameters that determine the files: equal SyntheticSets give files with equal bytes.

    train and val are numbers of images; width and height are in pixels.
    """

    name: str
    form: Format
    train: int
    val: int
    classes: int
    width: int
    height: int
    channels: int
    upright: bool
    """Whether about a quarter of the images have portrait orientation, as in ImageNet."""
    content: Content
    seed: int
    quality: int | None
    """JPEG quality; None for PNG, or for pixels that are not encoded."""
    shards: tuple[int, int]
    """Numbers of TFRecord files of train and val; 0 in other formats."""

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk, training images first."""
        splits: tuple[tuple[Split, int], ...] = (("train", self.train), ("val", self.val))
        for (split, images), shards in zip(splits, self.shards, strict=True):
            of = {
                "folder": math.ceil(images / _PER_FOLDER_CHUNK),
                "tfrecord": shards,
                "idx": 1,
            }.get(self.form) or len(CIFAR_FILES[self.form][split])
            edges = [number * images // of for number in range(of + 1)]
            for number, (first, last) in enumerate(pairwise(edges)):
                yield Chunk(split, number, of, first, last - first)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names by label, in sorted order; ImageNet's names have the form of WordNet's ids."""
        if self.name == "cifar10":
            return cifar.CLASSES[: self.classes]
        pattern = {"mnist": "{0}", "imagenet": "n{1:08d}"}.get(self.name, "{0:04d}")
        return tuple(pattern.format(label, label + 1) for label in range(self.classes))

    @property
    def parameters(self) -> dict[str, Any]:
        return {**asdict(self), "shards": list(self.shards)}

    def told(self) -> str:
        """A description: `20 training and 10 validation images of 10 classes, 28 x 28 grey`."""
        return (
            f"{self.train:,} training and {self.val:,} validation images of {self.classes:,} "
            f"classes, {self.width} x {self.height} {'RGB' if self.channels == 3 else 'grey'}"
        )


def plan_synthetic_set(
    name: str,
    form: str | None = None,
    *,
    fraction: float | None = None,
    images: int | None = None,
    classes: int | None = None,
    size: Size | None = None,
    content: str = "natural",
    seed: int = 0,
) -> SyntheticSet:
    """The parameters of a synthetic version of a named set, with official values for arguments that
    are None.

    `images` is the number of training images; validation images keep the official proportion, with
    at least one per class. Without `classes`, a set with more than ten classes gets fewer classes
    if each class would have fewer than ten training images.

    Raises UserError, which states the valid values.
    """
    if name not in NAMED:
        hint = "; digits needs none: it comes with scikit-learn" if name == "digits" else ""
        raise UserError(f"no synthetic data set for {name!r}; valid: {', '.join(NAMED)}{hint}")
    known = NAMED[name]
    chosen = _form(name, known, form)
    if content not in get_args(Content):
        raise UserError(f"content {content!r}; valid: {' and '.join(get_args(Content))}")
    if seed < 0:
        raise UserError(f"seed {seed}; valid: numbers from 0")
    facts = known.facts
    train = _train_images(name, known, fraction, images)
    classes = _classes(name, facts.classes, train, classes)
    val = max(round(train * facts.val_samples / facts.train_samples), classes)
    if chosen in CIFAR_FILES and train < len(CIFAR_FILES[chosen]["train"]):
        raise UserError(
            f"{train} training images are too few for CIFAR-10's five files; give five or more"
        )
    jpeg = chosen in ("folder", "tfrecord") and facts.image_size > 32
    width, height = _size(name, chosen, size)
    return SyntheticSet(
        name=name,
        form=chosen,
        train=train,
        val=val,
        classes=classes,
        width=width,
        height=height,
        channels=facts.channels,
        upright=name == "imagenet" and size is None,
        content="noise" if content == "noise" else "natural",
        seed=seed,
        quality=_QUALITY[content] if jpeg else None,
        shards=_shards(train, val) if chosen == "tfrecord" else (0, 0),
    )


def _form(name: str, known: NamedSet, form: str | None) -> Format:
    for valid in known.formats:
        if form in (None, valid):
            return valid
    raise UserError(f"{name} has no format {form!r}; valid: {' or '.join(known.formats)}")


def _train_images(name: str, known: NamedSet, fraction: float | None, images: int | None) -> int:
    official = known.facts.train_samples
    if fraction is not None and images is not None:
        raise UserError("both a fraction and a number of images are given; give one of them")
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise UserError(f"fraction {fraction:g}; valid: above 0, up to 1")
        images = round(official * fraction)
    images = official if images is None else images
    if images < 2:
        raise UserError(f"{images} training images of {name}; valid: two or more")
    return images


def _classes(name: str, official: int, train: int, wanted: int | None) -> int:
    if wanted is None:
        few = min(official, train)
        return few if official <= 10 else min(official, max(2, train // _PER_CLASS))
    if not 1 <= wanted <= min(official, train):
        raise UserError(
            f"got {wanted} classes; {name} has {official}, and each class needs at least one of "
            f"the {train} training images; give 1 to {min(official, train)}"
        )
    return wanted


def _size(name: str, form: str, size: Size | None) -> Size:
    if size is None:
        return SIZES[name]
    least, most = _SIDES
    if not all(least <= side <= most for side in size):
        raise UserError(f"size {size[0]}x{size[1]}; valid: sides of {least} to {most} pixels")
    if form in CIFAR_FILES and size != SIZES[name]:
        raise UserError(
            f"CIFAR-10's {form} files have images of 32 x 32 pixels; use folder or tfrecord"
        )
    if name == "mnist" and size[0] != size[1]:
        raise UserError(f"size {size[0]}x{size[1]}; digits are square")
    return size


def _shards(train: int, val: int) -> tuple[int, int]:
    return max(1, round(train / _PER_SHARD["train"])), max(1, round(val / _PER_SHARD["val"]))
