"""Prepared: a data set on this machine's disk, ready for loading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import (
    DIGITS_MEAN,
    DIGITS_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    NAMED,
    Augment,
    DatasetFacts,
    Fit,
    Format,
    match_classes,
)

Split = Literal["train", "val"]


@dataclass(frozen=True)
class Prepared:
    """Where both splits are, and how pixels are transformed. It is small and can be pickled."""

    data: DataOptions
    facts: DatasetFacts
    classes: tuple[str, ...]
    """Class names by label."""
    form: Format | Literal["own", "tensors"]
    files: Path
    """The folder of the files, to which the listing's paths are relative."""
    listing: Path | None
    """The folder of the listings, one per split; None if samples need no listing."""
    augment: Augment
    """The random augmentation of each training image."""
    fit: Fit
    """How an image of another size is fitted to the network's size, if it is not augmented."""
    exact: bool
    """Whether every image must have the network's size; other sizes are an error."""
    mean: tuple[float, ...]
    """The mean of each channel, for pixels in 0..1."""
    std: tuple[float, ...]

    @property
    def encoded(self) -> bool:
        """Whether samples are encoded image files; otherwise they are pixels."""
        return self.form in ("folder", "tfrecord")

    @property
    def tensors(self) -> bool:
        """Whether samples go to the network unchanged; otherwise they are images."""
        return self.form in ("tokens", "tensors")

    @property
    def resizes(self) -> bool:
        """Whether views may need resizing to the network's size."""
        return not self.exact or self.fit == "center"

    def samples(self, split: Split) -> int:
        return self.facts.train_samples if split == "train" else self.facts.val_samples


def unchanged_images() -> dict[str, Any]:
    """Values of Prepared's image fields for samples that are not images."""
    return {"augment": "none", "fit": "stretch", "exact": True, "mean": (), "std": ()}


def prepared_of(
    data: DataOptions,
    facts: DatasetFacts,
    found: dict[str, int],
    *,
    classes: tuple[str, ...],
    form: Format | Literal["own"],
    files: Path,
    listing: Path | None = None,
    exact: bool = False,
) -> Prepared:
    """The Prepared of a set on disk with `found` images in each split.

    Raises DataError if the numbers differ from the plan, which may come from another machine.
    """
    check_as_planned(facts, found, classes, files)
    rule = treatment(data, facts.channels)
    return Prepared(data, facts, classes, form, files, listing, exact=exact, **rule)


def check_as_planned(
    facts: DatasetFacts, found: dict[str, int], classes: tuple[str, ...], files: Path
) -> None:
    """Raise DataError if the set on disk has other counts or classes than the plan."""
    planned = {"train": facts.train_samples, "val": facts.val_samples}
    remedy = "copy the planned data set to all machines, or begin a new run"
    if found != planned or (facts.channels and len(classes) != facts.classes):
        raise DataError(
            f"{files}: the plan has {_told(planned, facts.classes)}; this set has "
            f"{_told(found, len(classes))}; {remedy}"
        )
    match_classes(facts.class_names, "the plan", classes, str(files), remedy)


def _told(counts: dict[str, int], classes: int) -> str:
    return f"{counts['train']} training and {counts['val']} validation images of {classes} classes"


def treatment(data: DataOptions, channels: int) -> dict[str, Any]:
    """Prepared's fields for the transforms of pixels: augment, fit, mean and std.

    The user's own images are normalised with ImageNet's mean and std, averaged over channels for
    grey images, unless `data.mean` and `data.std` are given.
    """
    known = NAMED.get(data.name)
    augment: Augment = known.augment if known else "none"
    fit: Fit = known.fit if known else "stretch"
    if data.augment != "auto":
        augment = data.augment
    if augment == "resized_crop_flip":
        fit = "center"
    if data.mean is not None and data.std is not None:
        pair = (data.mean, data.std)
    elif data.name == "digits":
        pair = (DIGITS_MEAN, DIGITS_STD)
    else:
        pair = (known.mean, known.std) if known else (IMAGENET_MEAN, IMAGENET_STD)
    mean, std = (_of_channels(values, channels) for values in pair)
    return {"augment": augment, "fit": fit, "mean": mean, "std": std}


def normalisation(data: DataOptions, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel, for pixels in 0..1. Reads no files."""
    rule = treatment(data, channels)
    return rule["mean"], rule["std"]


def _of_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) == channels:
        return values
    return (sum(values) / len(values),) * channels
