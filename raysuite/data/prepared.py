"""Prepared: a data set on this machine's disk, ready to be loaded."""

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
    """Where both splits are and how their pixels are transformed; small, and can be pickled."""

    data: DataOptions
    facts: DatasetFacts
    classes: tuple[str, ...]
    """Names by label."""
    form: Format | Literal["own", "tensors"]
    files: Path
    """What the listing's paths are relative to, or the folder of the files."""
    listing: Path | None
    """The folder of the listings, one per split; None where samples are not single files."""
    augment: Augment
    """What is drawn anew for each training image."""
    fit: Fit
    """How images of another size become square where nothing is drawn."""
    exact: bool
    """Every image has the network's size already; any other size is an error."""
    mean: tuple[float, ...]
    """Per channel, of pixels in 0..1."""
    std: tuple[float, ...]

    @property
    def encoded(self) -> bool:
        """Whether samples are JPEG or PNG files; they are bare pixels otherwise."""
        return self.form in ("folder", "tfrecord")

    @property
    def tensors(self) -> bool:
        """Whether samples are given to the network as they are; they are images otherwise."""
        return self.form in ("tokens", "tensors")

    @property
    def resizes(self) -> bool:
        """Whether views have other sizes than the network's."""
        return not self.exact or self.fit == "center"

    def samples(self, split: Split) -> int:
        return self.facts.train_samples if split == "train" else self.facts.val_samples


def unchanged_images() -> dict[str, Any]:
    """The fields of Prepared that say how pixels are transformed, of samples without pixels."""
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
    """A set on disk in which `found` images of each split were counted.

    Raises DataError where that is not what was planned: another machine, or another day, counts
    differently.
    """
    check_as_planned(facts, found, classes, files)
    rule = treatment(data, facts.channels)
    return Prepared(data, facts, classes, form, files, listing, exact=exact, **rule)


def check_as_planned(
    facts: DatasetFacts, found: dict[str, int], classes: tuple[str, ...], files: Path
) -> None:
    """Raise DataError where the set on disk is not the one that was planned."""
    planned = {"train": facts.train_samples, "val": facts.val_samples}
    remedy = "make the copies of all machines equal to it, or begin a new run"
    if found != planned or (facts.channels and len(classes) != facts.classes):
        raise DataError(
            f"{files}: the plan counts {_told(planned, facts.classes)}; here are "
            f"{_told(found, len(classes))}; {remedy}"
        )
    match_classes(facts.class_names, "the plan", classes, str(files), remedy)


def _told(counts: dict[str, int], classes: int) -> str:
    return f"{counts['train']} training and {counts['val']} validation images of {classes} classes"


def treatment(data: DataOptions, channels: int) -> dict[str, Any]:
    """How pixels are transformed: augment, fit, and mean and std per channel, as in Prepared.

    The user's own images are normalised with ImageNet's mean and std, averaged where they are grey,
    unless `data.mean` and `data.std` are given.
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
    """Mean and std per channel, of pixels in 0..1, whether or not the set is on this machine."""
    rule = treatment(data, channels)
    return rule["mean"], rule["std"]


def _of_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) == channels:
        return values
    return (sum(values) / len(values),) * channels
