"""Convert image folders to TFRecord shards with indices; a killed conversion can be resumed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysuite.data.formats.base import Listing
from raysuite.data.formats.image_folder import listed
from raysuite.data.formats.image_folder import listings as listings_of
from raysuite.data.formats.tfrecord import encode_example, write_records
from raysuite.data.header import Header
from raysuite.data.order import permutation
from raysuite.data.pixels import as_image, decode, encode, header_of
from raysuite.data.prepared import Split
from raysuite.data.processes import Count, journaled
from raysuite.errors import DataError, how_to_write
from raysuite.files import continued_lines, printable, write_whole
from raysuite.spec.datasets import CLASSES_FILE

# Which shard an image goes to depends only on the source folder's listing and the options.

PLAN, JOURNAL, MANIFEST = "convert.json", "shards.jsonl", "manifest.json"
VERSION = 3
"""To be increased with each change of the code that changes the shards, so that older conversions
are not resumed."""
SHARD_BYTES = 150_000_000
"""Bytes of source images per shard, if the number of shards is not given."""
_QUALITY = 95
"""The JPEG quality of images that are shrunk."""
_SYNSET = re.compile(r"n\d{8}")
_SHOWN = 20
"""The largest number of bad images that a message names."""


@dataclass(frozen=True)
class Shard:
    """A planned shard, with its images in order."""

    name: str
    split: Split
    paths: NDArray[np.bytes_]
    """[n] paths of the images, relative to the source folder."""
    labels: NDArray[np.int64]
    """[n] class numbers from 0."""
    stats: NDArray[np.int64]
    """[n, 2]: size in bytes, and modification time in ns."""

    @property
    def fingerprint(self) -> str:
        """A digest of the images' paths, labels, sizes and modification times."""
        return _digest(self.paths, self.labels, self.stats)


@dataclass(frozen=True)
class Conversion:
    """The plan of a conversion, made before the first image is read."""

    source: Path
    target: Path
    shorter_side: int | None
    """The upper bound of an image's shorter side, in pixels; None: no bound. Images above the bound
    are shrunk to it. Other JPEGs and PNGs are copied byte for byte."""
    classes: tuple[str, ...]
    shards: tuple[Shard, ...]
    document: dict[str, Any]
    """The content of convert.json."""
    passed_over: int
    """The number of files and folders in the source that are ignored, not counting hidden ones."""

    @property
    def synsets(self) -> bool:
        """Whether all classes are named like WordNet's synsets."""
        return all(_SYNSET.fullmatch(name) for name in self.classes)

    @property
    def first_label(self) -> int:
        """The first class's label in the shards: 1 if the classes are synsets, as in TensorFlow's
        ImageNet files, else 0."""
        return int(self.synsets)

    def images(self, split: Split) -> int:
        """The number of images in a split, unreadable ones included."""
        return sum(len(shard.paths) for shard in self.shards if shard.split == split)

    @property
    def bytes(self) -> int:
        """The size of all source images, in bytes."""
        return sum(int(shard.stats[:, 0].sum()) for shard in self.shards)


def plan_conversion(
    source: Path, target: Path, shards: int | None = None, shorter_side: int | None = None
) -> Conversion:
    """Plan every shard; nothing is written.

    `shards` is the number of training shards (default: one per SHARD_BYTES of source images);
    validation shards have about the same size. If `target` contains a conversion, it will be
    resumed: its complete shards are not written again. Raises DataError if `source` is not an image
    folder, if `target` is the source or contains files but no conversion, or if the conversion in
    `target` has other options or images.
    """
    source, target = (path.expanduser().resolve() for path in (source, target))
    begun = _begun(target)
    if source == target:
        raise DataError(
            f"{target}: shards cannot be written into their source folder; give another folder"
        )
    images = listed(source)
    classes, listings = listings_of(images)
    document: dict[str, Any] = {
        "version": VERSION,
        "shards_wanted": shards,
        "shorter_side": shorter_side,
        "classes": len(classes),
        "images": {split: len(each.labels) for split, each in listings.items()},
        "listing": {split: _digest(each.paths, each.labels) for split, each in listings.items()},
    }
    found: dict[Split, Listing] = {"train": listings["train"], "val": listings["val"]}
    stats = {split: _stats(source, listing) for split, listing in found.items()}
    counts = _shard_counts(shards, stats)
    if begun is not None:
        _same(begun, document, target)
        counts = begun["shards"]  # sizes may have changed, but the numbers of shards stay
    planned: list[Shard] = []
    for number, (split, listing) in enumerate(found.items()):
        order = permutation(len(listing.labels), 0, number)
        for shard, ids in enumerate(np.array_split(order, counts[split])):
            name = f"{split}-{shard:05d}-of-{counts[split]:05d}"
            parts = (listing.paths[ids], listing.labels[ids], stats[split][ids])
            planned.append(Shard(name, split, *parts))
    document |= {"source": str(source), "shards": counts}
    return Conversion(
        source, target, shorter_side, classes, tuple(planned), document, images.passed_over
    )


def _begun(target: Path) -> dict[str, Any] | None:
    """The plan (convert.json) in `target`; None if `target` is missing or has only hidden files."""
    if target.exists() and not target.is_dir():
        raise DataError(f"{target} is a file; give a new or an empty folder")
    # a conversion that is killed at its start leaves only hidden files
    if not target.exists() or all(path.name.startswith(".") for path in target.iterdir()):
        return None
    try:
        found = json.loads((target / PLAN).read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not a mapping")
        return found
    except FileNotFoundError as error:
        raise DataError(
            f"{target} contains files but no conversion (no {PLAN}); give a new or an empty folder"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{target / PLAN} cannot be read ({error!r}); give a new or an empty folder"
        ) from error


def _same(begun: dict[str, Any], now: dict[str, Any], target: Path) -> None:
    """Raise DataError, with the differences, if the plan `begun` differs from the plan `now`."""
    changed = [
        f"{key} {begun.get(key)} then, {now[key]} now" for key in now if begun.get(key) != now[key]
    ]
    if changed:
        raise DataError(
            f"{target} has a conversion with other options or images ({'; '.join(changed)}); "
            "remove the folder to start again, or give another folder"
        )


def _stats(source: Path, listing: Listing) -> NDArray[np.int64]:
    root = os.fsencode(source)
    stats = np.empty((len(listing.paths), 2), np.int64)
    for row, path in enumerate(listing.paths.tolist()):
        try:
            status = os.stat(os.path.join(root, path))
            stats[row] = status.st_size, status.st_mtime_ns
        except FileNotFoundError:
            stats[row] = 0  # a broken link counts as a bad image
        except OSError as error:
            raise DataError(f"{os.fsdecode(error.filename)}: {error.strerror}") from error
    return stats


def _shard_counts(wanted: int | None, stats: dict[Split, NDArray[np.int64]]) -> dict[Split, int]:
    if wanted is None:
        counts = {split: math.ceil(each[:, 0].sum() / SHARD_BYTES) for split, each in stats.items()}
    else:
        share = len(stats["val"]) / len(stats["train"])
        counts = {"train": wanted, "val": math.ceil(wanted * share)}
    return {split: min(max(1, count), len(stats[split])) for split, count in counts.items()}


def _digest(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


# Making a shard: read its images, write its records, rename it.

Policy = Literal["error", "skip"]


@dataclass(frozen=True)
class Bad:
    path: str
    reason: str


@dataclass(frozen=True)
class Written:
    name: str
    sources: str
    """The fingerprint of the images from which the shard was made."""
    records: int
    bytes: int
    sha256: str
    bad: tuple[Bad, ...]


def write_shard(conversion: Conversion, policy: Policy, count: Count) -> Written:
    """Write the only shard of `conversion`, and its index, to temporary files; rename both files
    when they are complete.

    Bad images are left out; with policy `error` a shard with bad images is not kept. `count` is
    called for each image. Raises DataError if the target cannot be written.
    """
    (shard,) = conversion.shards
    target = conversion.target / shard.name
    temporary = conversion.target / f".{shard.name}.{os.getpid()}.part"
    index = temporary.with_suffix(".idx")
    bad: list[Bad] = []

    def records() -> Iterator[bytes]:
        for row in range(len(shard.paths)):
            try:
                yield _record(conversion, row)
            except _BadImageError as error:
                bad.append(Bad(*error.args))
            count(1)

    try:
        write_records(temporary, records())
        with temporary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = temporary.stat().st_size
        if not bad or policy == "skip":
            # the index first: a shard with its final name then always has an index
            index.rename(target.with_suffix(".idx"))
            temporary.rename(target)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error.strerror}); {how_to_write(error)} or give "
            "another folder, and do not run two conversions into one folder at the same time"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
    written = len(shard.paths) - len(bad)
    return Written(shard.name, shard.fingerprint, written, size, digest, tuple(bad))


class _BadImageError(Exception):
    """Holds the image's path, and why it cannot be read."""


def _record(conversion: Conversion, row: int) -> bytes:
    (shard,) = conversion.shards
    path = os.path.join(os.fsencode(conversion.source), bytes(shard.paths[row]))
    place = path.decode("utf-8", "backslashreplace")  # for display: names may be any bytes
    try:
        with open(path, "rb") as file:
            data = file.read()
        header = header_of(data, place)
        data, header = _shrunk(data, header, conversion.shorter_side, place)
    except OSError as error:
        raise _BadImageError(place, f"cannot be read: {error.strerror}") from error
    except DataError as error:
        raise _BadImageError(place, str(error.__cause__ or error)) from error
    label = int(shard.labels[row])
    name = os.fsencode(conversion.classes[label])
    features: dict[str, bytes | int] = {
        "image/class/synset" if conversion.synsets else "image/class/text": name,
        "image/filename": os.path.basename(path),
        "image/format": header.kind.upper().encode(),
        "image/height": header.height,
        "image/width": header.width,
        "image/channels": header.channels,
    }
    return encode_example(data, label + conversion.first_label, more=features)


def _shrunk(
    data: bytes, header: Header, shorter_side: int | None, place: str
) -> tuple[bytes, Header]:
    """Shrink an image so that its shorter side has at most `shorter_side` pixels. A JPEG or PNG
    that need not be shrunk is returned unchanged.

    All other images are encoded again, as grey or RGB with 8 bits per channel, without metadata. A
    JPEG stays a JPEG; any other format becomes PNG, because TensorFlow and DALI do not read every
    format. Images are shrunk by antialiased cubic interpolation.
    """
    shorter = min(header.width, header.height)
    side = min(shorter, shorter_side or shorter)
    if side == shorter and header.kind != "other":
        return data, header
    pixels = decode(data, 1 if header.channels == 1 else 3, place)
    width, height = (round(each * side / shorter) for each in (header.width, header.height))
    image = as_image(pixels).resize((width, height), Image.Resampling.BICUBIC)
    kind: Literal["jpeg", "png"] = "jpeg" if header.kind == "jpeg" else "png"
    small = encode(np.asarray(image), _QUALITY if kind == "jpeg" else None, level=6)
    return small, Header(kind, width, height, pixels.shape[2])


@dataclass(frozen=True)
class Summary:
    train: int
    val: int
    classes: int
    first_label: int
    shards: int
    bytes: int
    written: int
    """The number of shards written by this call; all other shards were already complete."""
    skipped: tuple[Bad, ...]


def convert(
    conversion: Conversion, workers: int, bad: Policy = "error", count: Count = lambda images: None
) -> Summary:
    """Write every shard that is not complete, then the manifest.

    `count` is called first with the number of images in shards that were already complete, and
    then, repeatedly, with the number of images processed since its last call. The same call resumes
    a killed conversion. With `bad="error"`, raises a DataError that lists bad images; shards
    without bad images are kept.
    """
    target = conversion.target
    try:
        state = _begin(conversion)
        todo = [shard for shard in conversion.shards if not _complete(shard, state, target, bad)]
        count(sum(map(_images, conversion.shards)) - sum(map(_images, todo)))
        _check_room(conversion, todo)
        if todo:
            # an old manifest must not list missing shards
            (target / MANIFEST).unlink(missing_ok=True)
        tasks = [partial(write_shard, replace(conversion, shards=(each,)), bad) for each in todo]

        def keeps(written: Written) -> bool:
            return not written.bad or bad == "skip"

        try:
            for written in journaled(tasks, workers, count, target / JOURNAL, keeps):
                state[written.name] = written
        finally:
            _clean(target)
        shards = [state[shard.name] for shard in conversion.shards]
        unreadable = tuple(one for shard in shards for one in shard.bad)
        if unreadable and bad == "error":
            raise DataError(_listed(unreadable))
        write_whole(target / MANIFEST, json.dumps(_manifest(conversion, shards), indent=1).encode())
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}") from error
    return Summary(
        train=sum(shard.records for shard in shards if shard.name.startswith("train-")),
        val=sum(shard.records for shard in shards if shard.name.startswith("val-")),
        classes=len(conversion.classes),
        first_label=conversion.first_label,
        shards=len(shards),
        bytes=sum(shard.bytes for shard in shards),
        written=len(todo),
        skipped=unreadable,
    )


def _begin(conversion: Conversion) -> dict[str, Written]:
    """Create the target folder with its plan and class names, unless they exist; return the shards
    that the journal records, by name."""
    target = conversion.target
    target.mkdir(parents=True, exist_ok=True)
    _clean(target)
    if not (target / PLAN).is_file():
        write_whole(target / PLAN, json.dumps(conversion.document, indent=1).encode())
    if not (target / CLASSES_FILE).is_file():
        names = "".join(f"{name}\n" for name in map(printable, conversion.classes))
        write_whole(target / CLASSES_FILE, names.encode())
    state: dict[str, Written] = {}
    for found in continued_lines(target / JOURNAL):
        bad = tuple(Bad(**each) for each in found.pop("bad"))
        state[found["name"]] = Written(**found, bad=bad)
    return state


def _images(shard: Shard) -> int:
    return len(shard.paths)


def _complete(shard: Shard, state: dict[str, Written], target: Path, bad: Policy) -> bool:
    """Whether the shard and its index exist, the shard has the size in the journal, and its source
    images have not changed since it was written. A shard with bad images is complete only if `bad`
    is "skip"."""
    known, path = state.get(shard.name), target / shard.name
    return (
        known is not None
        and known.sources == shard.fingerprint
        and (bad == "skip" or not known.bad)
        and path.is_file()
        and path.stat().st_size == known.bytes
        and path.with_suffix(".idx").is_file()
    )


def _check_room(conversion: Conversion, todo: Sequence[Shard]) -> None:
    if conversion.shorter_side is not None:
        return  # the size of shrunk images is known only afterwards
    needed = sum(int(shard.stats[:, 0].sum()) for shard in todo)
    free = shutil.disk_usage(conversion.target).free
    if needed > free:
        raise DataError(
            f"{conversion.target}: {needed / 1e9:.1f} GB are needed, but only {free / 1e9:.1f} GB "
            "are available; free disk space, give a folder on another disk, or shrink the images "
            "with --shorter-side"
        )


def _manifest(conversion: Conversion, shards: Sequence[Written]) -> dict[str, Any]:
    return {
        **conversion.document,
        "first_label": conversion.first_label,
        "files": {
            shard.name: {key: getattr(shard, key) for key in ("sha256", "bytes", "records")}
            for shard in shards
        },
        "skipped": [asdict(one) for shard in shards for one in shard.bad],
    }


def _clean(target: Path) -> None:
    """Remove the temporary files of a killed conversion."""
    for pattern in (".*.part", ".*-of-*.idx"):
        for path in target.glob(pattern):
            path.unlink(missing_ok=True)


def _listed(bad: Sequence[Bad]) -> str:
    count = "1 image" if len(bad) == 1 else f"{len(bad)} images"
    return "\n".join(
        [
            f"{count} cannot be read (shards without unreadable images are kept):",
            *(f"  {one.path}: {one.reason}" for one in bad[:_SHOWN]),
            *([f"  and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []),
            "replace them by readable images with the same names and run the same command again, "
            "or leave them out with --bad skip",
        ]
    )
