"""The table of data sets: how each one becomes a Prepared; one module each, loaded on use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysuite.data.cache import cache_dir
from raysuite.data.prepared import Prepared
from raysuite.lazy import load
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import IMAGENET_MEAN, IMAGENET_STD, NAMED, Augment, DatasetFacts, Fit

_DIGITS = "raysuite.data.sets.digits:prepare"
_BY_FORM = {
    "folder": "raysuite.data.sets.folder:prepare",
    "tfrecord": "raysuite.data.sets.records:prepare",
    "idx": "raysuite.data.sets.idx:prepare",
    "binary": "raysuite.data.sets.cifar:prepare",
    "pickle": "raysuite.data.sets.cifar:prepare",
    "own": "raysuite.data.sets.own:prepare",
}


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path | None = None) -> Prepared:
    """Make sure that the data set lies on this machine's disk, and say where.

    `digits` is written once below `cache` (default: `cache_dir()`) and checked against its
    checksums; the others are read where they lie, and what listing them takes is kept in the
    cache. May be called by any number of processes at once.

    Raises DataError where the data set is missing or damaged, or has other counts than `facts`.
    """
    target = _DIGITS if data.name == "digits" else _BY_FORM[data.form or "own"]
    prepared: Prepared = load(target)(data, facts, cache_dir() if cache is None else cache)
    return prepared


def treatment(data: DataOptions, channels: int) -> dict[str, Any]:
    """What becomes of the pixels: augment, fit, and mean and std per channel, as in Prepared.

    One's own images are normalised with ImageNet's mean and std, averaged where they are grey,
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
        pair = (load("raysuite.data.sets.digits:MEAN"), load("raysuite.data.sets.digits:STD"))
    else:
        pair = (known.mean, known.std) if known else (IMAGENET_MEAN, IMAGENET_STD)
    mean, std = (_of_channels(values, channels) for values in pair)
    return {"augment": augment, "fit": fit, "mean": mean, "std": std}


def normalisation(data: DataOptions, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel, of pixels in 0..1, whether or not the set lies on this machine."""
    rule = treatment(data, channels)
    return rule["mean"], rule["std"]


def _of_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) == channels:
        return values
    return (sum(values) / len(values),) * channels
