"""TFRecord shards: every record, its checksums, its image and its label, and the index."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raysuite.data.check.images import check_image
from raysuite.data.check.listed import Listed, reason
from raysuite.data.check.report import Finding, Part
from raysuite.data.check.targets import Target, manifest_of
from raysuite.data.formats.example import decode_example
from raysuite.data.formats.tfrecord import read_index, read_record, walk
from raysuite.data.processes import Count
from raysuite.errors import DataError
from raysuite.layouts import records
from raysuite.spec.data import FeatureMap
from raysuite.spec.datasets import SPLITS

Place = tuple[int, int]
"""Offset and size of a record in bytes, headers included."""


@dataclass(frozen=True)
class Task:
    """One shard."""

    split: str
    path: Path
    features: FeatureMap
    labels: range | None
    """Valid ones; None where they are not known."""
    sha256: str | None
    """What the manifest says of the file."""
    decode: bool
    write_index: bool


def list_shards(target: Target, decode: bool, write_index: bool) -> Listed:
    """The shards of every split, also where some are missing."""
    findings: list[Finding] = []
    root, features = target.root, target.data.features
    try:
        records.find(target.data)
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
        for path in records.matching(root, getattr(features, split)):
            told = sums.get(path.name)
            sha256 = told if isinstance(told, str) else None
            tasks.append(Task(split, path, features, labels, sha256, decode, write_index))
    total = sum(task.path.stat().st_size for task in tasks)
    names = {label: name for label, name in zip(labels or (), target.names, strict=False)}
    return Listed(check_shard, tuple(tasks), total, "bytes", names, tuple(findings))


def check_shard(task: Task, count: Count) -> Part:
    """Look at every record of a shard; `count` is told bytes."""
    part = Part(task.split)
    try:
        with task.path.open("rb", buffering=0) as file:
            for offset, size in _places(task, part):
                _check_record(task, part, file.fileno(), offset, size)
                count(size)
            if task.sha256 is not None:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != task.sha256:
                    message = (
                        f"not what was converted: its SHA-256 is {digest[:12]}..., and "
                        f"manifest.json says {task.sha256[:12]}..."
                    )
                    part.wrong("file", str(task.path), message)
    except OSError as error:
        part.wrong("file", str(task.path), f"cannot be read ({error.strerror})")
    return part


def _places(task: Task, part: Part) -> list[Place]:
    """Where the records are: as the file itself tells, and behind a damaged length as the index
    does. What is wrong with either is added to `part`."""
    found: list[Place] = []
    damage: DataError | None = None
    try:
        found.extend(walk(task.path))
    except DataError as error:
        damage = error
    end = sum(found[-1]) if found else 0
    indexed = _indexed(task, part, found, end if damage else None)
    if damage is None:
        return found
    rest = [place for place in indexed if place[0] > end]
    message = reason(damage, f"{task.path} at byte {end}")
    if not rest:
        left = task.path.stat().st_size - end
        message += f"; no record in the last {left} bytes can be read"
    part.wrong("record", str(task.path), message, end)
    if not indexed or indexed[-1][0] >= end:  # else there is no record, but bytes too many
        part.images += 1
        part.unreadable += 1
    return found + rest


def _indexed(task: Task, part: Part, found: list[Place], end: int | None) -> list[Place]:
    """What the index says; `found` up to byte `end` (None: all) is what it should."""
    path = records.index_of(task.path)
    if path is None:
        _write_index(task, part, Path(f"{task.path}.idx"), found, end, "there is no index")
        return []
    try:
        told = [(offset, size) for offset, size in read_index(path).tolist()]
    except DataError as error:
        _write_index(task, part, path, found, end, reason(error, str(path)))
        return []
    before = told if end is None else [place for place in told if place[0] < end]
    if before == found and not _chained(told):
        wrong = "its records do not follow each other"
        _write_index(task, part, path, found, end, wrong)
        return []
    if before != found:
        pairs = enumerate(zip(before, found, strict=False))
        row = next((row for row, (one, other) in pairs if one != other), None)
        if row is None:
            wrong = f"it has {len(before)} records, and the file has {len(found)}"
        else:
            wrong = (
                f"line {row + 1} says offset and size {_told(before[row])}; in the file they are "
                f"{_told(found[row])}"
            )
        _write_index(task, part, path, found, end, wrong)
        return []
    return told


def _write_index(
    task: Task, part: Part, path: Path, found: list[Place], end: int | None, wrong: str
) -> None:
    """Say what is wrong with an index, or write it if that is wanted and the shard is whole."""
    if not task.write_index or end is not None:
        remedy = "; write it with --write-index" if end is None else ""
        part.wrong("index", str(path), wrong + remedy)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text("".join(f"{offset} {size}\n" for offset, size in found))
        temporary.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        part.wrong("index", str(path), f"{wrong}; it cannot be written ({error.strerror})")
    else:
        part.note("index", str(path), f"written: {wrong}")


def _check_record(task: Task, part: Part, descriptor: int, offset: int, size: int) -> None:
    place = f"{task.path} at byte {offset}"
    names = (task.features.image, task.features.label)
    try:
        data = read_record(descriptor, offset, size, place)
        image, label = decode_example(data, place, *names)
    except DataError as error:
        part.images += 1
        part.unreadable += 1
        part.wrong("record", str(task.path), reason(error, place), offset)
        return
    part.labels[label] += 1
    if (label not in task.labels) if task.labels is not None else label < 0:
        valid = f"{task.labels[0]} to {task.labels[-1]}" if task.labels else "0 and above"
        part.wrong("label", str(task.path), f"label {label}; valid are {valid}", offset)
    check_image(part, image, str(task.path), task.decode, offset)


def _chained(places: list[Place]) -> bool:
    ends = [0, *map(sum, places)]
    return all(
        offset == end and size >= records.FRAME
        for (offset, size), end in zip(places, ends, strict=False)
    )


def _told(place: Place) -> str:
    return f"{place[0]} {place[1]}"


def label_findings(target: Target, labels: Iterator[int]) -> tuple[int | None, list[Finding]]:
    """Where the first label was not known: what it must be, judging by all `labels`."""
    present = sorted(set(labels))
    many = len(target.names)
    if not present or not many:
        return None, []
    for first in (0, 1):
        if present[0] >= first and present[-1] < first + many and (first or present[0] == 0):
            return first, []
    message = f"labels from {present[0]} to {present[-1]}, and classes.txt names {many} classes"
    return None, [Finding(str(target.root), -1, "label", message)]
