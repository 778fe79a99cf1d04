"""Which image goes into which shard: a function of the folder's listing and the options alone."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from raysuite.data.formats.base import Listing
from raysuite.data.formats.folder import listed
from raysuite.data.formats.folder import listings as listings_of
from raysuite.data.order import permutation
from raysuite.data.prepared import Split
from raysuite.errors import DataError

PLAN, JOURNAL, MANIFEST = "convert.json", "shards.jsonl", "manifest.json"
VERSION = 1
"""Raised whenever shards would come out differently, so that old ones are not gone on with."""
MB = 1_000_000
GONE = (-1, -1)
"""In the place of an image's size and time: a link that leads nowhere."""
_SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Options:
    """What becomes of the images, and how they are spread."""

    shards: int | None = None
    """Training shards; validation gets as many as make its shards alike. None: by `shard_mb`."""
    shard_mb: float = 150
    """Source images of a shard, in units of 10^6 bytes."""
    order: Literal["shuffled", "sorted"] = "shuffled"
    """`sorted`: by class and file name."""
    seed: int = 0
    shorter_side: int | None = None
    """Larger images are shrunk to this many pixels; all others keep their bytes."""
    quality: int = 95
    """Of the JPEGs that are shrunk."""
    first_label: int | None = None
    """None: 1 where all classes are synsets, as in TensorFlow's ImageNet, else 0."""


@dataclass(frozen=True)
class Shard:
    """One file to be: its images, in order."""

    name: str
    split: Split
    paths: NDArray[np.bytes_]
    """[n], relative to the source folder."""
    labels: NDArray[np.int64]
    """[n], from 0."""
    stats: NDArray[np.int64]
    """[n, 2]: bytes, and time of the last change in ns."""

    @property
    def fingerprint(self) -> str:
        """Of the listing and the state of the images: differs when one of them was changed."""
        return _digest(self.paths, self.labels, self.stats)


@dataclass(frozen=True)
class Conversion:
    """All that is decided before the first image is read."""

    source: Path
    target: Path
    options: Options
    classes: tuple[str, ...]
    synsets: bool
    """Whether all classes are named like WordNet's synsets."""
    first_label: int
    shards: tuple[Shard, ...]
    document: dict[str, Any]
    """What convert.json says."""
    passed_over: int
    """Entries of the source that are neither images nor hidden."""

    def images(self, split: Split) -> int:
        """Images of a split, bad ones included."""
        return sum(len(shard.paths) for shard in self.shards if shard.split == split)

    @property
    def bytes(self) -> int:
        """Of all source images."""
        return sum(int(shard.stats[:, 0].clip(0).sum()) for shard in self.shards)


def plan_conversion(
    source: Path, target: Path, options: Options, force: bool = False
) -> Conversion:
    """Decide on every shard; nothing is written.

    A conversion that `target` holds already is gone on with: its shards are taken over. Raises
    DataError where `source` is no image folder, or `target` holds anything else, or what was
    begun there differs in options or images; not for a conversion if `force`.
    """
    source, target = (path.expanduser().resolve() for path in (source, target))
    begun = _begun(target)
    if source == target:
        raise DataError(f"{target}: shards cannot lie in the folder that they are made from")
    images = listed(source)
    classes, listings = listings_of(images)
    if begun is not None and not force:
        _same(begun, _document(source, options, classes, listings, {}), target)
    synsets = all(_SYNSET.fullmatch(name) for name in classes)
    found: dict[Split, Listing] = {"train": listings["train"], "val": listings["val"]}
    stats = {split: _stats(source, listing) for split, listing in found.items()}
    counts = _shard_counts(options, stats)
    if begun is not None and not force:  # sizes may have changed; the shards are those of then
        counts = {split: int(begun["shards"][split]) for split in found}
    shards: list[Shard] = []
    for number, (split, listing) in enumerate(found.items()):
        order = np.arange(len(listing.labels))
        if options.order == "shuffled":
            order = permutation(len(order), options.seed, number)
        for shard, ids in enumerate(np.array_split(order, counts[split])):
            name = f"{split}-{shard:05d}-of-{counts[split]:05d}"
            parts = (listing.paths[ids], listing.labels[ids], stats[split][ids])
            shards.append(Shard(name, split, *parts))
    first = int(synsets) if options.first_label is None else options.first_label
    document = _document(source, options, classes, listings, counts)
    return Conversion(
        source,
        target,
        options,
        classes,
        synsets,
        first,
        tuple(shards),
        document,
        images.passed_over,
    )


def _document(
    source: Path,
    options: Options,
    classes: tuple[str, ...],
    listings: dict[str, Listing],
    counts: dict[Split, int],
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "source": str(source),
        "options": asdict(options),
        "classes": len(classes),
        "images": {split: len(each.labels) for split, each in listings.items()},
        "listing": {split: _digest(each.paths, each.labels) for split, each in listings.items()},
        "shards": counts,
    }


def _begun(target: Path) -> dict[str, Any] | None:
    """The convert.json of `target`; None where nothing lies there."""
    if target.exists() and not target.is_dir():
        raise DataError(f"{target} is a file; give a new or an empty folder")
    # hidden files: what is left of a conversion that was killed at its very beginning
    if not target.exists() or all(path.name.startswith(".") for path in target.iterdir()):
        return None
    try:
        found: dict[str, Any] = json.loads((target / PLAN).read_text("utf-8"))
        if found["version"] != VERSION:
            raise DataError(
                f"{target / PLAN} is of version {found['version']} and cannot be gone on with; "
                "add --force to begin anew, or give another folder"
            )
        return found
    except FileNotFoundError as error:
        raise DataError(
            f"{target} holds files, and no conversion ({PLAN}); give a new or an empty folder"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{target / PLAN} cannot be read ({error!r}); give a new or an empty folder"
        ) from error


def _same(begun: dict[str, Any], now: dict[str, Any], target: Path) -> None:
    """Raises DataError that says how what was begun differs from what is asked for now."""
    remedy = "add --force to begin anew, or give another folder"
    then, asked = begun.get("options", {}), now["options"]
    changed = [
        f"{key} {then.get(key)} then, {asked[key]} now"
        for key in asked
        if then.get(key) != asked[key]
    ]
    if changed:
        raise DataError(f"{target} was begun with other options ({'; '.join(changed)}); {remedy}")
    if begun.get("listing") != now["listing"] or begun.get("classes") != now["classes"]:
        was, has = (
            f"{each['images']['train']} + {each['images']['val']} images of "
            f"{each['classes']} classes"
            for each in (begun, now)
        )
        raise DataError(
            f"{target} was begun from other images: {was} in {begun['source']} then, {has} now, "
            f"or other names; {remedy}"
        )


def _stats(source: Path, listing: Listing) -> NDArray[np.int64]:
    root = os.fsencode(source)
    stats = np.empty((len(listing.paths), 2), np.int64)
    for row, path in enumerate(listing.paths.tolist()):
        try:
            status = os.stat(os.path.join(root, path))
            stats[row] = status.st_size, status.st_mtime_ns
        except FileNotFoundError:
            stats[row] = GONE
        except OSError as error:
            raise DataError(f"{os.fsdecode(error.filename)}: {error.strerror}") from error
    return stats


def _shard_counts(options: Options, stats: dict[Split, NDArray[np.int64]]) -> dict[Split, int]:
    if options.shards is None:
        wanted = {
            split: math.ceil(each[:, 0].sum() / (options.shard_mb * MB))
            for split, each in stats.items()
        }
    else:
        share = len(stats["val"]) / len(stats["train"])
        wanted = {"train": options.shards, "val": math.ceil(options.shards * share)}
    return {split: min(max(1, count), len(stats[split])) for split, count in wanted.items()}


def _digest(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
