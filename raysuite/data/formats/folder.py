"""Image folders: ROOT/train/CLASS/* and ROOT/val/CLASS/*."""

from __future__ import annotations

import os
from pathlib import Path

from raysuite.data.formats.listing import Listing
from raysuite.errors import DataError
from raysuite.spec.datasets import IMAGE_SUFFIXES

_LAYOUT = "expected is PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or .jpg)"


def scan(root: Path) -> tuple[tuple[str, ...], dict[str, Listing]]:
    """The class names, sorted, and for each split its images in order of class and file name.

    Raises DataError where the splits have different classes, or a class has no training image.
    """
    classes = {split: _class_names(root / split) for split in ("train", "val")}
    if classes["train"] != classes["val"]:
        odd = sorted(set(classes["train"]) ^ set(classes["val"]))
        place = {name: "train" if name in classes["train"] else "val" for name in odd}
        shown = ", ".join(f"{place[name]}/{name}" for name in odd[:5])
        raise DataError(
            f"{root}: train and val must have the same class folders, and "
            f"{len(odd)} stand on one side only: {shown}; add or remove the missing ones"
        )
    names = classes["train"]
    listings = {split: _list(root, split, names) for split in ("train", "val")}
    filled = set(listings["train"].labels.tolist())
    bare = [name for label, name in enumerate(names) if label not in filled]
    if bare:
        raise DataError(
            f"{root}/train: no image of {', '.join(bare[:5])}; valid are files that end in "
            f"{', '.join(IMAGE_SUFFIXES)}; add images or remove the class from train and val"
        )
    if not len(listings["val"].labels):
        raise DataError(f"{root}/val: no images; {_LAYOUT}")
    return tuple(names), listings


def _class_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(f"no folder {folder}; {_LAYOUT}")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not names:
        raise DataError(f"no class folders in {folder}; {_LAYOUT}")
    return names


def _list(root: Path, split: str, classes: list[str]) -> Listing:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        images = sorted(
            entry.name
            for entry in os.scandir(root / split / name)
            if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file()
        )
        paths += [f"{split}/{name}/{image}" for image in images]
        labels += [label] * len(images)
    return Listing.of(paths, labels)
