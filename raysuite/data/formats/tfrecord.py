"""TFRecord shards of tf.train.Example: train-00000-of-01024, validation-00000-of-00128, *.idx.

A record is: length (uint64), masked CRC-32C of the length (uint32), the data, masked CRC-32C of the
data (uint32), all little-endian: https://www.tensorflow.org/tutorials/load_data/tfrecord

The index has a line `offset size` per record, in bytes; the size includes lengths and checksums.
NVIDIA's tfrecord2idx writes the same format. An Example is the message in which TensorFlow and DALI
store a labelled image. The message class is built here from its published description, so that
neither TensorFlow nor a protobuf compiler is needed:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from raysuite.data.cache import listed_once, publish, verify
from raysuite.data.findings import Finding, Listed, Part, Target, check_image, reason
from raysuite.data.formats import base
from raysuite.data.formats.base import SHOWN, Counts, RecordListing, absent
from raysuite.data.prepared import Prepared, Split, prepared_of
from raysuite.data.processes import Count
from raysuite.errors import DataError, some
from raysuite.files import write_whole
from raysuite.spec.data_set import DataOptions, FeatureMap, root_of
from raysuite.spec.datasets import (
    CLASSES_FILE,
    NAMED,
    RECORD_PATTERNS,
    SPLITS,
    DatasetFacts,
    Format,
    distinct_names,
)

HEAD = 12
"""Bytes of a record before its data: 8 for the data's length, and 4 for the length's CRC."""
FRAME = HEAD + 4
"""Bytes of a record in addition to its data."""
_PACKED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""The first bytes of GZIP and ZLIB data (RFC 1952, RFC 1950)."""
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)(\D*)")

_MOST = 100_000
"""Upper bound of the number of shards in a file name; a name with a larger number is ignored in the
search for missing shards."""


@dataclass(frozen=True)
class Shard:
    """A file of records, and its index if any."""

    path: Path
    index: Path | None


def find(data: DataOptions) -> dict[str, list[Shard]]:
    """The shards of each split, sorted by name, in PATH or one folder below it.

    Raises DataError, which names missing and compressed shards. Shards are missing if a split has
    no shard, or if its pattern is the default and the file names state more shards than exist.
    """
    root = root_of(data)
    if not root.is_dir():
        raise absent(data, ())
    patterns = {"train": data.features.train, "val": data.features.val}
    paths = {split: matching(root, pattern) for split, pattern in patterns.items()}
    missing = [patterns[split] for split in SPLITS if not paths[split]]
    for split in SPLITS:
        if patterns[split] == RECORD_PATTERNS[split]:
            missing += _gaps(paths[split])
    if missing:
        raise absent(data, missing)
    packed = [str(path) for split in SPLITS for path in paths[split] if _compressed(path)]
    if packed:
        raise DataError(
            f"{some(packed, SHOWN)}: compressed as a whole by GZIP or ZLIB; valid: plain "
            "records; unpack them (gunzip), and write their indices again with "
            f"`raysuite data check {root} --write-index`"
        )
    return {split: [Shard(path, index_of(path)) for path in paths[split]] for split in SPLITS}


def matching(root: Path, pattern: str) -> list[Path]:
    """The files in `root` that match a pattern, sorted, except index files (`.idx`) and hidden
    files; if there are none, those in the subfolders of `root`."""
    for where in (pattern, f"*/{pattern}"):
        found = sorted(
            path
            for path in root.glob(where)
            if path.suffix != ".idx" and not path.name.startswith(".") and path.is_file()
        )
        if found:
            return found
    return []


def _compressed(path: Path) -> bool:
    """Whether the whole file is compressed by GZIP or ZLIB."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = file.read(HEAD)
        return head.startswith(_PACKED) and head[8:] != _crc(head[:8])
    return False


def _gaps(paths: Sequence[Path]) -> list[str]:
    """The names of missing shards, derived from the number of shards in the existing names."""
    there = {path.name for path in paths}
    wanted: set[str] = set()
    for path in paths:
        match = _NUMBERED.fullmatch(path.name)
        if match is not None and path.name not in wanted and int(match[3]) <= _MOST:
            stem, number, total, end = match.groups()
            wanted |= {f"{stem}{n:0{len(number)}d}-of-{total}{end}" for n in range(int(total))}
    return sorted(wanted - there)


def index_of(path: Path) -> Path | None:
    """The index of a shard: NAME.idx next to it or in idx_files, with or without NAME's suffix."""
    names = dict.fromkeys((f"{path.name}.idx", f"{path.stem}.idx"))
    folders = (path.parent, path.parent / "idx_files", path.parent.parent / "idx_files")
    places = (folder / name for folder in folders for name in names)
    return next((place for place in places if place.is_file()), None)


def count(data: DataOptions) -> Counts:
    """The number of records in each split, from the indices.

    Raises DataError, which names shards without an index. With `bad_samples: skip`, the records of
    these shards are counted instead, up to the first damaged record.
    """
    counts = {split: sum(map(len, map(_index, each))) for split, each in _indexed(data).items()}
    empty = [split for split in SPLITS if not counts[split]]
    if empty:
        raise DataError(
            f"no records in {' and '.join(empty)} of {root_of(data)}; write the shards again"
        )
    return Counts(counts["train"], counts["val"], class_names(data))


def _indexed(data: DataOptions) -> dict[str, list[Shard]]:
    """The shards of each split. Raises the errors of `find`, and DataError for shards without an
    index unless bad samples are skipped."""
    found = find(data)
    bare = [str(shard.path) for split in SPLITS for shard in found[split] if shard.index is None]
    if bare and data.bad_samples == "error":
        raise DataError(
            f"no index of {some(bare, SHOWN)}; expected NAME.idx next to it or in idx_files; "
            f"run `raysuite data check {root_of(data)} --write-index` or NVIDIA's tfrecord2idx, or "
            "set data.bad_samples to skip, so that each run searches the shards for their records"
        )
    return found


def class_names(data: DataOptions) -> tuple[str, ...]:
    """The class names in `classes.txt` in the set's folder; without this file, the class numbers.

    Raises DataError if the file is empty or not UTF-8, or if its number of names is not
    `data.classes`.
    """
    path = root_of(data) / CLASSES_FILE
    known = NAMED[data.name].facts.classes if data.name in NAMED else data.classes
    if not path.is_file():
        return tuple(map(str, range(known or 0)))
    try:
        names = tuple(path.read_text("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}; write it again as UTF-8") from error
    if not names or (data.classes is not None and len(names) != data.classes):
        raise DataError(
            f"{path} names {len(names)} classes, but data.classes is {data.classes}; correct one "
            "of the two"
        )
    return distinct_names(names, str(path))


def first_label(data: DataOptions) -> int:
    """The label of the first class in the records."""
    if data.features.first_label is not None:
        return data.features.first_label
    return NAMED[data.name].first_label if data.name in NAMED else 0


def walk(path: Path) -> Iterator[tuple[int, int]]:
    """Yield each record's offset and size in bytes, with lengths and checksums, without an index.

    Reads only the records' lengths and the lengths' checksums. Raises DataError, which names the
    offset, if a record is cut short or its length is damaged: the records after it cannot be found.
    """
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        offset = 0
        while offset < end:
            head = os.pread(file.fileno(), HEAD, offset)
            if len(head) < HEAD:
                raise cut_short(f"{path} at byte {offset}", end - offset, FRAME)
            if head[8:] != _crc(head[:8]):
                raise DataError(
                    f"{path} at byte {offset}: the checksum of the record's length differs; "
                    "copy the file again"
                )
            size = FRAME + int.from_bytes(head[:8], "little")
            if offset + size > end:
                raise cut_short(f"{path} at byte {offset}", end - offset, size)
            yield offset, size
            offset += size


def cut_short(place: str, present: int, size: int) -> DataError:
    """The error for a record that is cut short by the end of its file."""
    return DataError(f"{place}: record cut short, {present} of {size} bytes; copy the file again")


def _crc(data: bytes) -> bytes:
    """The CRC-32C of `data`, masked as in TFRecords. It is masked because the plain CRC is weak for
    data that itself contains CRCs (TensorFlow's crc32c.h)."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Write `records` to `path` and their index next to it, with the suffix .idx."""
    with path.open("wb") as file, path.with_suffix(".idx").open("w") as index:
        for data in records:
            length = len(data).to_bytes(8, "little")
            index.write(f"{file.tell()} {FRAME + len(data)}\n")
            file.write(length + _crc(length) + data + _crc(data))


def read_index(path: Path) -> NDArray[np.int64]:
    """An index as [n, 2] int64: offset and size of each record, in bytes. Raises DataError if the
    file is not an index."""
    try:
        numbers = np.array(path.read_bytes().split(), dtype=np.int64)
        return numbers.reshape(-1, 2)
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: not an index of a TFRecord file ({error}); expected a line "
            "'offset size' per record; delete it, and write it again with "
            f"`raysuite data check {path.parent} --write-index`"
        ) from error


def read_record(descriptor: int, offset: int, size: int, place: str) -> bytes:
    """The data of the record of `size` bytes at `offset` of an open file.

    Thread-safe and process-safe. Raises DataError with `place` if the record is cut short or a
    checksum differs.
    """
    # the index may be damaged too: never read beyond the end of the file
    present = os.fstat(descriptor).st_size - offset
    if offset < 0 or size < FRAME:
        raise DataError(
            f"{place}: the index gives offset {offset} and size {size}, which no record can have; "
            "write the index again"
        )
    record = b"" if size > present else os.pread(descriptor, size, offset)
    if len(record) < size:
        raise cut_short(place, max(0, min(present, size)), size)
    length, data = int.from_bytes(record[:8], "little"), record[HEAD:-4]
    if record[8:HEAD] != _crc(record[:8]):
        raise DataError(
            f"{place}: the checksum of the record's length differs; copy the file again"
        )
    if length != len(data):
        raise DataError(
            f"{place}: the record's length differs from its size in the index; "
            "write the index again"
        )
    if record[-4:] != _crc(data):
        raise DataError(f"{place}: the checksum of the record's data differs; copy the file again")
    return data


IMAGE = "image/encoded"
LABEL = "image/class/label"
"""In TensorFlow's ImageNet files, labels count from 1: see `first_label`."""

_PROTO = """
syntax: "proto3"
name: "raysuite/example.proto"
package: "raysuite"
message_type {
  name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED }
}
message_type {
  name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED }
}
message_type {
  name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".raysuite.BytesList" }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".raysuite.Int64List" }
}
message_type {
  name: "Features"
  nested_type {  # of a map<string, Feature>
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".raysuite.Feature" }
  }
  field {
    name: "feature" number: 1 label: LABEL_REPEATED
    type: TYPE_MESSAGE type_name: ".raysuite.Features.FeatureEntry"
  }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".raysuite.Features" }
}
"""
"""A google.protobuf.FileDescriptorProto. It lacks lists of floats, which raysuite does not read.
The message's package is not "tensorflow", because TensorFlow registers that package itself."""


def _example_class() -> Any:
    file = text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("raysuite.Example"))


_Example = _example_class()


def encode_example(
    image: bytes,
    label: int,
    image_name: str = IMAGE,
    label_name: str = LABEL,
    more: Mapping[str, bytes | int] = MappingProxyType({}),
) -> bytes:
    """An Example with an encoded image, a label, and the features `more`."""
    example = _Example()
    example.features.feature[image_name].bytes_list.value.append(image)
    example.features.feature[label_name].int64_list.value.append(label)
    for name, value in more.items():
        feature = example.features.feature[name]
        (feature.int64_list if isinstance(value, int) else feature.bytes_list).value.append(value)
    return bytes(example.SerializeToString(deterministic=True))


def decode_example(
    data: bytes, place: str, image_name: str = IMAGE, label_name: str = LABEL
) -> tuple[bytes, int]:
    """The encoded image and the label of an Example, from the features with the given names.

    Raises DataError with `place` if `data` is not an Example or lacks one of these features.
    """
    example = _Example()
    try:
        example.ParseFromString(data)
    except DecodeError as error:
        raise DataError(f"{place}: not a tf.train.Example ({error})") from error
    feature = example.features.feature
    present = sorted(feature)
    images, labels = feature[image_name].bytes_list.value, feature[label_name].int64_list.value
    if len(images) != 1 or len(labels) != 1:
        raise DataError(
            f"{place}: the Example lacks {image_name} (one image) or {label_name} (one integer); "
            f"it has {', '.join(present) or 'no features'}; set data.features.image and "
            "data.features.label to the names of its features"
        )
    return images[0], labels[0]


def _class_name(data: bytes) -> list[str]:
    """The class name in an Example, in a list; an empty list if there is none. The feature `synset`
    is preferred to `text`, which is not unique in ImageNet (two synsets are called crane)."""
    feature = _Example.FromString(data).features.feature
    names = (feature[f"image/class/{key}"].bytes_list.value for key in ("synset", "text"))
    return [found[0].decode("utf-8", "backslashreplace") for found in names if found][:1]


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Read the shards' indices. Records are read in place; only their positions go to `cache`.

    One process of a node reads the indices, and the other processes wait for it.
    """
    root = root_of(data)
    folder = listed_once(data, cache, lambda: listed(root, _indexed(data), cache))
    listing = folder / "listing"
    return prepared_of(
        data,
        facts,
        {split: len(RecordListing.read(listing, split).records) for split in SPLITS},
        classes=class_names(data),
        form="tfrecord",
        files=root.resolve(),
        listing=listing,
    )


def listed(root: Path, shards: Mapping[str, Sequence[Shard]], cache: Path) -> Path:
    """The folder below `cache` with the listing of `shards`, which lie below `root`.

    The folder's name depends on the names, sizes and times of shards and indices. The records of a
    shard without an index are found by walking the shard, up to the first damage.
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
    return folder


def _index(shard: Shard) -> NDArray[np.int64]:
    if shard.index is not None:
        listed = read_index(shard.index)
        begins, ends = np.append(listed[:, 0], shard.path.stat().st_size), listed.sum(1)
        apart = begins != np.insert(ends, 0, 0)
        # a shard that is too short is an error later, when its last record is read
        apart[-1] &= begins[-1] > (ends[-1] if len(ends) else 0)
        if apart.any():
            at = int(np.insert(ends, 0, 0)[apart.argmax()])
            raise DataError(
                f"{shard.index}: it lacks or repeats a record of {shard.path.name} at byte {at}; "
                f"write it again with `raysuite data check {shard.path.parent} --write-index`"
            )
        return listed
    found: list[Place] = []
    with contextlib.suppress(DataError):
        found.extend(walk(shard.path))
    return np.array(found, np.int64).reshape(-1, 2)


class Source(base.Source):
    """TFRecord shards, read in any order by their index; labels come from the records."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        assert prepared.listing is not None
        listing = RecordListing.read(prepared.listing, split)
        self._records = listing.records
        self._paths = [str(prepared.files / os.fsdecode(path)) for path in listing.shards.tolist()]
        features = prepared.data.features
        self._names = (features.image, features.label)
        self._first = first_label(prepared.data)
        self._files: list[FileIO] = []
        try:
            for path in self._paths:
                self._files.append(FileIO(path))
        except OSError as error:
            self.close()
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); it was there when the data set was "
                "prepared"
            ) from error

    def read(self, sample: int) -> tuple[bytes, int]:
        shard, offset, size = self._records[sample].tolist()
        place = self.place(sample)
        data = read_record(self._files[shard].fileno(), offset, size, place)
        image, label = decode_example(data, place, *self._names)
        return image, label - self._first

    def place(self, sample: int) -> str:
        shard, offset, _ = self._records[sample]
        return f"{self._paths[shard]} at byte {offset}"

    def file(self, sample: int) -> str:
        return self._paths[int(self._records[sample, 0])]

    def close(self) -> None:
        for file in self._files:
            file.close()


Place = tuple[int, int]
"""Offset and size of a record in bytes, including lengths and checksums."""


def to_check(target: Target, decode: bool, write_index: bool) -> Listed:
    """Tasks that check the shards of every split, even if some shards are missing."""
    findings: list[Finding] = []
    root, features = target.root, target.data.features
    try:
        find(target.data)
    except DataError as error:
        findings.append(Finding(str(root), -1, "file", str(error)))
    sums: dict[str, object] = {}
    try:
        files = manifest_of(root).get("files", {})
        sums = {name: each.get("sha256") for name, each in files.items()}
    except (DataError, AttributeError) as error:
        message = f"not the manifest of a conversion ({error})"
        findings.append(Finding(str(root / "manifest.json"), -1, "file", message))
    labels = None
    if target.names and target.first_label is not None:
        labels = range(target.first_label, target.first_label + len(target.names))
    tasks = []
    for split in SPLITS:
        for path in matching(root, getattr(features, split)):
            if _compressed(path):  # already reported by `find`
                continue
            told = sums.get(path.name)
            sha256 = told if isinstance(told, str) else None
            check = partial(check_shard, split, path, features, labels, sha256)
            tasks.append(partial(check, decode, write_index))
    total = sum(task.args[1].stat().st_size for task in tasks)
    names = {label: name for label, name in zip(labels or (), target.names, strict=False)}
    return Listed(tuple(tasks), total, "bytes", names, tuple(findings))


def check_shard(
    split: str,
    path: Path,
    features: FeatureMap,
    labels: range | None,
    sha256: str | None,
    decode: bool,
    write_index: bool,
    count: Count,
) -> Part:
    """Check every record of a shard; `count` is called with each record's size in bytes.

    labels: the valid labels, or None if unknown; sha256: the file's checksum in the manifest, or
    None.
    """
    part = Part(split)
    try:
        with path.open("rb", buffering=0) as file:
            for offset, size in _places(path, part, write_index):
                place = f"{path} at byte {offset}"
                try:
                    data = read_record(file.fileno(), offset, size, place)
                    image, label = decode_example(data, place, features.image, features.label)
                except DataError as error:
                    part.images += 1
                    part.unreadable += 1
                    part.wrong("record", str(path), reason(error, place), offset)
                else:
                    part.labels[label] += 1
                    part.names.update((name, label) for name in _class_name(data))
                    if (label not in labels) if labels is not None else label < 0:
                        valid = f"{labels[0]} to {labels[-1]}" if labels else "0 and above"
                        message = f"label {label}; valid: {valid}"
                        part.wrong("label", str(path), message, offset)
                    check_image(part, image, str(path), decode, offset)
                count(size)
            if sha256 and (digest := hashlib.file_digest(file, "sha256").hexdigest()) != sha256:
                message = (
                    f"not the converted shard: its SHA-256 is {digest[:12]}..., and manifest.json "
                    f"has {sha256[:12]}..."
                )
                part.wrong("file", str(path), message)
    except OSError as error:
        part.wrong("file", str(path), f"cannot be read ({error.strerror})")
    return part


def _places(path: Path, part: Part, write_index: bool) -> list[Place]:
    """The places of the records, found by walking the shard. Places after a damaged length come
    from the index. Errors in the shard and in the index are added to `part`."""
    found: list[Place] = []
    damage: DataError | None = None
    try:
        found.extend(walk(path))
    except DataError as error:
        damage = error
    end = sum(found[-1]) if found else 0
    index = index_of(path)
    indexed: list[Place] = []
    wrong = "there is no index"
    if index is not None:
        try:
            indexed = [(offset, size) for offset, size in read_index(index).tolist()]
            known = [place for place in indexed if place[0] < end] if damage else indexed
            wrong = "" if known == found else "it differs from the file"
        except DataError as error:
            wrong = reason(error, str(index))
    if wrong:
        indexed = []
        _wrong_index(index or Path(f"{path}.idx"), part, wrong, found, write_index and not damage)
    if damage is None:
        return found
    rest = [place for place in indexed if place[0] > end]
    message = reason(damage, f"{path} at byte {end}")
    if not rest:
        message += f"; no record in the last {path.stat().st_size - end} bytes can be read"
    part.wrong("record", str(path), message, end)
    # if the index has no later record, the damaged record is counted here
    if not indexed or indexed[-1][0] >= end:
        part.images += 1
        part.unreadable += 1
    return found + rest


def _wrong_index(path: Path, part: Part, wrong: str, found: list[Place], write: bool) -> None:
    """Add an error for the index; with `write`, instead write the index from the places `found`."""
    if not write:
        part.wrong(
            "index", str(path), f"{wrong}; --write-index writes a new index of an undamaged shard"
        )
        return
    try:
        write_whole(path, "".join(f"{offset} {size}\n" for offset, size in found).encode())
    except OSError as error:
        part.wrong("index", str(path), f"{wrong}; the index cannot be written ({error.strerror})")
    else:
        part.note("index", str(path), f"{wrong}; written by --write-index")


def label_findings(target: Target, labels: set[int]) -> tuple[int | None, list[Finding]]:
    """(first label, findings), from all `labels` in the records and the number of class names. The
    first label is None if it is unknown or if the labels do not match the class names."""
    present = sorted(labels)
    many = len(target.names)
    if not present or not many:
        return None, []
    for first in (0, 1):
        if present[0] >= first and present[-1] < first + many and (first or present[0] == 0):
            return first, []
    message = f"labels from {present[0]} to {present[-1]}, but classes.txt names {many} classes"
    return None, [Finding(str(target.root), -1, "label", message)]


def name_findings(
    root: Path, names: Mapping[int, str], found: Iterable[tuple[str, int]]
) -> Iterator[Finding]:
    """A finding for each class name that has more than one label. `found`: (name, label) pairs of
    the records; `names`: label -> name in classes.txt."""
    labels: dict[str, set[int]] = {}
    for name, label in (*found, *((name, label) for label, name in names.items())):
        labels.setdefault(name, set()).add(label)
    for name, several in labels.items():
        if len(several) > 1:
            held = ", ".join(map(str, sorted(several)))
            where = "records and classes.txt" if name in names.values() else "records"
            message = f"class {name!r} has the labels {held} in the {where}; use only one of them"
            yield Finding(str(root), -1, "label", message)


def detect(path: Path, names: set[str]) -> Format | None:
    shards = [name for name in names if not name.endswith(".idx") and not name.startswith(".")]
    patterns = RECORD_PATTERNS.values()
    return "tfrecord" if any(fnmatch(name, each) for name in shards for each in patterns) else None


def manifest_of(root: Path) -> dict[str, Any]:
    """The manifest of a conversion; empty if it is missing. Raises DataError if it is damaged."""
    path = root / "manifest.json"
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return found if isinstance(found, dict) else {}
