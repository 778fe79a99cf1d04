"""Prepared: a data set that lies on this machine's disk, ready to be loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from raysuite.data import digits
from raysuite.data.cache import cache_dir, publish, verify
from raysuite.data.folder import scan
from raysuite.data.listing import Listing
from raysuite.errors import DataError
from raysuite.spec.experiment import DataOptions
from raysuite.spec.names import DatasetFacts

Split = Literal["train", "val"]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's training images, RGB in 0..1, as torchvision's pretrained models expect them:
https://docs.pytorch.org/vision/stable/models.html"""


@dataclass(frozen=True)
class Prepared:
    """Where both splits lie and how their pixels are normalised; small, and can be pickled."""

    facts: DatasetFacts
    classes: tuple[str, ...]
    """Names by label."""
    form: Literal["folder", "tfrecord"]
    files: Path
    """What the listing's paths are relative to, or the folder of the TFRecord files."""
    listing: Path
    """The folder of the listings, one per split."""
    resize: bool
    """Images have other sizes than the network's, and are resized while they are loaded."""
    mean: tuple[float, ...]
    """Per channel, of pixels in 0..1."""
    std: tuple[float, ...]

    def samples(self, split: Split) -> int:
        """Images of a split."""
        return self.facts.train_samples if split == "train" else self.facts.val_samples


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path | None = None) -> Prepared:
    """Make sure that the data set lies on this machine's disk, and say where.

    `digits` is written once below `cache` (default: `cache_dir()`) and checked against its
    checksums; `image_folder` is listed there and read where it lies. May be called by any
    number of processes at once.

    Raises DataError where the data set is missing or damaged, or has other counts than `facts`.
    """
    cache = cache_dir() if cache is None else cache
    return _digits(data, facts, cache) if data.name == "digits" else _folder(data, facts, cache)


def _digits(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    size = facts.image_size
    root = cache / "data" / f"digits-{size}-v{digits.VERSION}"
    publish(root, partial(digits.write_digits, size=size))
    verify(root, ("listing", data.format))
    prepared = Prepared(
        facts=facts,
        classes=digits.CLASSES,
        form=data.format,
        files=root / data.format,
        listing=root / "listing",
        resize=False,
        mean=digits.MEAN * facts.channels,
        std=digits.STD * facts.channels,
    )
    return _counted(prepared)


def _folder(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    root = Path(data.path or "").expanduser().resolve()
    classes, listings = scan(root)
    content = hashlib.sha256()
    for listing in listings.values():
        content.update(listing.paths.tobytes() + listing.labels.tobytes())
    folder = cache / "data" / f"image-folder-{content.hexdigest()[:16]}"

    def write(target: Path) -> None:
        for split, listing in listings.items():
            listing.write(target / "listing", split)

    publish(folder, write)
    verify(folder, ("listing",))
    grey = facts.channels == 1
    prepared = Prepared(
        facts=facts,
        classes=classes,
        form="folder",
        files=root,
        listing=folder / "listing",
        resize=True,
        mean=(sum(IMAGENET_MEAN) / 3,) if grey else IMAGENET_MEAN,
        std=(sum(IMAGENET_STD) / 3,) if grey else IMAGENET_STD,
    )
    return _counted(prepared)


def _counted(prepared: Prepared) -> Prepared:
    """Raise DataError where another machine, or another day, counted differently."""
    found = {split: len(Listing.read(prepared.listing, split).labels) for split in ("train", "val")}
    facts = prepared.facts
    planned = {"train": facts.train_samples, "val": facts.val_samples}
    if found != planned or len(prepared.classes) != facts.classes:
        raise DataError(
            f"{prepared.files}: the plan counts {_told(planned, facts.classes)}; here are "
            f"{_told(found, len(prepared.classes))}. Images count only directly in "
            "SPLIT/CLASS/; make the copies of all machines equal, and plan again"
        )
    return prepared


def _told(counts: dict[str, int], classes: int) -> str:
    return f"{counts['train']} training and {counts['val']} validation images of {classes} classes"
