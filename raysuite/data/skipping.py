"""The unreadable samples of a set, found before the first epoch.

A set is checked in chunks. Each chunk's result is cached with the state of its files, so that the
next run, or a resumed run, need not check it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import PIL

from raysuite.data.base import Slice
from raysuite.data.formats import Source, tfrecord
from raysuite.data.formats.base import Listing
from raysuite.data.pixels import check_whole
from raysuite.data.prepared import Prepared, Split
from raysuite.data.reading import read
from raysuite.errors import DataError
from raysuite.files import write_whole
from raysuite.spec.datasets import cache_dir

CHUNK = 512
"""Number of samples that are checked and cached together: some seconds of work for one core."""

_VERSION = 2
"""Version of the check, to be increased if a change of the code alters which samples are found
unreadable, so that cached results of the older code are not reused."""

Faults = dict[int, str]
"""Sample -> why it cannot be read. Readable samples are left out."""


def look(
    prepared: Prepared, source: Source, ids: range, threads: Executor, cache: Path | None = None
) -> tuple[Faults, bool]:
    """The faults of the samples `ids` of `source`, and whether they come from the cache.

    The reference decoder decodes every image completely; checksums and labels are checked too.
    Results are cached below `cache` (default: `cache_dir()`).
    """
    key = _key(prepared, source, ids)
    folder = (cache_dir() if cache is None else cache) / "looks"
    file = None if key is None else folder / key[:2] / f"{key}.json"
    known = None if file is None else _kept(file)
    if known is not None:
        return {ids.start + place: reason for place, reason in known.items()}, True
    reasons = threads.map(lambda sample: _fault(prepared, source, sample), ids)
    faults = {sample: reason for sample, reason in zip(ids, reasons, strict=True) if reason}
    if file is not None:
        kept = {sample - ids.start: reason for sample, reason in faults.items()}
        # if not cached, the next run checks again, with the same result
        with contextlib.suppress(OSError):
            write_whole(file, json.dumps(kept).encode())
    return faults, False


def lacking(prepared: Prepared, split: Split) -> list[str]:
    """Descriptions of missing data without sample numbers: classes without training images, and
    records after damaged bytes in a shard without an index."""
    if prepared.form == "folder" and prepared.listing is not None and split == "train":
        filled = set(Listing.read(prepared.listing, split).labels.tolist())
        bare = [name for label, name in enumerate(prepared.classes) if label not in filled]
        return [f"class {name}: no training image" for name in bare]
    if prepared.form == "tfrecord" and prepared.data.name != "digits":
        return [
            damage
            for shard in tfrecord.find(prepared.data)[split]
            if shard.index is None and (damage := _damage(shard.path))
        ]
    return []


def _damage(shard: Path) -> str:
    try:
        for _ in tfrecord.walk(shard):
            pass
    except DataError as error:
        return str(error).partition(";")[0]
    return ""


def _fault(prepared: Prepared, source: Source, sample: int) -> str:
    """A sample's place and why it cannot be read, without advice; empty for a readable sample."""
    place = source.place(sample)
    try:
        (got,) = read(source, prepared, Slice(np.array([sample]), 1, 1)).samples
        check_whole(got, place)
    except DataError as error:
        reason = str(error).removeprefix(f"{place}: ").partition(";")[0]
        return f"{place}: {reason}"
    return ""


def _key(prepared: Prepared, source: Source, ids: range) -> str | None:
    """A digest of everything that the faults depend on; None for samples without a file."""
    facts, features = prepared.facts, prepared.data.features.model_dump_json()
    rule = (facts.classes, facts.channels, facts.image_size, prepared.exact, prepared.form)
    digest = hashlib.sha256(repr((_VERSION, PIL.__version__, *rule, features)).encode())
    files: dict[str, None] = {}
    for sample in ids:
        file = source.file(sample)
        if file is None:
            return None
        files[file] = None
        digest.update(os.fsencode(source.place(sample)) + b"\0")
    for file in files:
        with contextlib.suppress(OSError):  # `_fault` reports a missing file
            state = os.stat(file)
            digest.update(f"{state.st_size} {state.st_mtime_ns}".encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _kept(file: Path) -> Faults | None:
    try:
        return {int(place): str(reason) for place, reason in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return None
