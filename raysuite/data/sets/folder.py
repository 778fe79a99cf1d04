"""Images as single files: anyone's folder, or a named set that was unpacked into one."""

from __future__ import annotations

import fcntl
import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from raysuite.data.cache import publish, verify
from raysuite.data.formats.folder import listings
from raysuite.data.formats.listing import Listing
from raysuite.data.prepared import Prepared, counted
from raysuite.data.sets import treatment
from raysuite.layouts import folders, root_of
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import SPLITS, DatasetFacts

_SETTLED_S = 2.0
"""File systems keep times to within two seconds (FAT); a folder that was changed in the last ones
may change again without another time."""


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """List the images where they lie; the listing is kept below `cache`.

    One process of a node lists, and the others wait for it; none lists again what has not changed.
    """
    try:
        changed, state = folders.state(data)
    except OSError:  # `find` says what is missing
        changed, state = math.inf, ""
    with _one_at_a_time(cache / "data"):
        if changed < time.time() - _SETTLED_S:
            folder = cache / "data" / f"image-folder-{state[:16]}"
            publish(folder, lambda target: _write(listings(folders.find(data))[1], target))
        else:
            folder = _by_content(data, cache)
    verify(folder, ("listing",))
    prepared = Prepared(
        data=data,
        facts=facts,
        classes=folders.classes_of(data),
        form="folder",
        files=root_of(data).resolve(),
        listing=folder / "listing",
        exact=False,
        **treatment(data, facts.channels),
    )
    counts = {split: len(Listing.read(folder / "listing", split).labels) for split in SPLITS}
    return counted(prepared, counts)


def _by_content(data: DataOptions, cache: Path) -> Path:
    _, found = listings(folders.find(data))
    content = hashlib.sha256()
    for listing in found.values():
        content.update(listing.paths.tobytes() + listing.labels.tobytes())
    folder = cache / "data" / f"image-folder-{content.hexdigest()[:16]}"
    publish(folder, lambda target: _write(found, target))
    return folder


def _write(found: dict[str, Listing], target: Path) -> None:
    for split, listing in found.items():
        listing.write(target / "listing", split)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """On one node; nothing goes wrong where a file system cannot lock, but for the time."""
    with ExitStack() as held:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((folder / ".listing.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
