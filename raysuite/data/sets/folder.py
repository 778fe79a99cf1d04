"""Images as single files: anyone's folder, or a named set that was unpacked into one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from raysuite.data.cache import publish, verify
from raysuite.data.formats.folder import listings
from raysuite.data.prepared import Prepared, counted
from raysuite.data.sets import treatment
from raysuite.layouts import folders
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import DatasetFacts


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """List the images where they lie; the listing is kept below `cache`."""
    images = folders.find(data)
    classes, found = listings(images)
    content = hashlib.sha256()
    for listing in found.values():
        content.update(listing.paths.tobytes() + listing.labels.tobytes())
    folder = cache / "data" / f"image-folder-{content.hexdigest()[:16]}"

    def write(target: Path) -> None:
        for split, listing in found.items():
            listing.write(target / "listing", split)

    publish(folder, write)
    verify(folder, ("listing",))
    prepared = Prepared(
        data=data,
        facts=facts,
        classes=classes,
        form="folder",
        files=images.root.resolve(),
        listing=folder / "listing",
        exact=False,
        **treatment(data, facts.channels),
    )
    return counted(prepared, {split: len(each.labels) for split, each in found.items()})
