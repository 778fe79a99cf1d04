"""Images as single files: anyone's folder, or a named set that was unpacked into one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from raysuite.data.cache import publish, verify
from raysuite.data.formats.folder import scan
from raysuite.data.prepared import Prepared, counted
from raysuite.data.sets import treatment
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import DatasetFacts, default_path


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """List the images where they lie; the listing is kept below `cache`."""
    path = Path(data.path) if data.path else default_path(data.name, "folder")
    root = path.expanduser().resolve()
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
    prepared = Prepared(
        data=data,
        facts=facts,
        classes=classes,
        form="folder",
        files=root,
        listing=folder / "listing",
        exact=False,
        **treatment(data, facts.channels),
    )
    return counted(prepared, {split: len(each.labels) for split, each in listings.items()})
