"""TFRecord shards: a named set, or anyone's with a stated feature map."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysuite.data.cache import publish, verify
from raysuite.data.formats.listing import RecordListing
from raysuite.data.formats.tfrecord import read_index
from raysuite.data.prepared import Prepared, counted
from raysuite.data.sets import treatment
from raysuite.layouts import records, root_of
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import SPLITS, DatasetFacts


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Read the shards' indices; the records stay where they lie, their places go to `cache`."""
    root = root_of(data)
    shards = records.find(data)
    bare = [str(each.path) for split in SPLITS for each in shards[split] if each.index is None]
    if bare and data.bad_samples == "error":
        raise records.no_index(bare, data)
    prepared = Prepared(
        data=data,
        facts=facts,
        classes=records.class_names(data),
        form="tfrecord",
        files=root.resolve(),
        listing=listed(root, shards, cache),
        exact=False,
        **treatment(data, facts.channels),
    )
    return counted(prepared, counts(prepared.listing))


def listed(root: Path, shards: Mapping[str, Sequence[records.Shard]], cache: Path) -> Path:
    """The folder below `cache` of the listing of `shards`; they lie below `root`.

    Found again by the names, sizes and times of shards and indices. The records of a shard
    without an index are found by walking it, up to the first damage.
    """
    files = [
        file
        for split in SPLITS
        for shard in shards[split]
        for file in (shard.path, shard.index or shard.path)
    ]
    states = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    names = [str(file.absolute()) for file in files]
    digest = hashlib.sha256(repr((names, states)).encode()).hexdigest()
    folder = cache / "data" / f"records-{digest[:16]}"

    def write(target: Path) -> None:
        for split in SPLITS:
            names = [shard.path.relative_to(root).as_posix() for shard in shards[split]]
            indices = [_index(shard) for shard in shards[split]]
            RecordListing.of(names, indices).write(target / "listing", split)

    publish(folder, write)
    verify(folder, ("listing",))
    return folder / "listing"


def counts(listing: Path | None) -> dict[str, int]:
    """Records of each split."""
    assert listing is not None
    return {split: len(RecordListing.read(listing, split).records) for split in SPLITS}


def _index(shard: records.Shard) -> NDArray[np.int64]:
    if shard.index is not None:
        return read_index(shard.index)
    return np.array(records.whole_records(shard.path), np.int64).reshape(-1, 2)
