"""Image folders -> listings: which file is which sample, and its label."""

from __future__ import annotations

from pathlib import Path

from raysuite.data.formats.listing import Listing
from raysuite.data.formats.synsets import synsets_of
from raysuite.errors import DataError
from raysuite.layouts import folders
from raysuite.spec.datasets import SPLITS


def scan(
    root: Path, val_may_lack: bool = False, skip: bool = False
) -> tuple[tuple[str, ...], dict[str, Listing]]:
    """The class names, sorted, and for each split its images in order of class and file name,
    relative to `root`.

    See `raysuite.layouts.folders.listed` for what raises DataError.
    """
    return listings(folders.listed(root, val_may_lack, skip))


def listings(images: folders.Images) -> tuple[tuple[str, ...], dict[str, Listing]]:
    """The class names and the listing of each split."""
    labels = {name: label for label, name in enumerate(images.classes)}
    flat = _flat(images, labels)
    found = {}
    for split in SPLITS:
        pairs = [
            (f"{images.top}{split}/{name}/{file}", labels[name])
            for name, files in images.splits[split].items()
            for file in files
        ]
        if split == "val":
            pairs += [(f"{images.top}{split}/{file}", label) for label, file in flat]
        found[split] = Listing.of([path for path, _ in pairs], [label for _, label in pairs])
    return images.classes, found


def _flat(images: folders.Images, labels: dict[str, int]) -> list[tuple[int, str]]:
    """Label and name of the images that lie in one folder, sorted."""
    if not images.flat:
        return []
    assert images.labels is not None
    synsets = synsets_of(images.flat, images.labels)
    unknown = sorted(set(synsets) - set(labels))
    if unknown:
        raise DataError(
            f"{images.labels}: validation images of {len(unknown)} classes that have no folder in "
            f"{images.root / images.top}train: {', '.join(unknown[:5])}; add them, or take those "
            "images out"
        )
    return sorted((labels[synset], name) for synset, name in zip(synsets, images.flat, strict=True))
