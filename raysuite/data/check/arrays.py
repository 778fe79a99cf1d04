"""MNIST's IDX files and CIFAR-10's batches: lengths, counts and labels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysuite.data.check.listed import Listed, reason
from raysuite.data.check.report import Finding, Part
from raysuite.data.check.targets import Target
from raysuite.data.formats.idx import unpack
from raysuite.data.processes import Count
from raysuite.errors import DataError
from raysuite.layouts import cifar, idx

_CLASSES = 10


@dataclass(frozen=True)
class Task:
    """The files of one split that belong together."""

    form: str
    split: str
    paths: tuple[Path, ...]
    """idx: images and labels; binary, pickle: one batch."""


def list_arrays(target: Target) -> Listed:
    """The files of both splits."""
    form = target.data.form
    assert form is not None
    names = idx.CLASSES if form == "idx" else cifar.CLASSES
    tasks: list[Task] = []
    findings: list[Finding] = []
    try:
        if form == "idx":
            tasks += [Task(form, split, pair) for split, pair in idx.find(target.data).items()]
        else:
            found = cifar.find(target.data).items()
            tasks += [Task(form, split, (path,)) for split, paths in found for path in paths]
    except DataError as error:
        findings.append(Finding(str(target.root), -1, "file", str(error)))
    total = sum(path.stat().st_size for task in tasks for path in task.paths)
    known = dict(enumerate(names))
    return Listed(check_arrays, tuple(tasks), total, "bytes", known, tuple(findings))


def check_arrays(task: Task, count: Count) -> Part:
    """Look at the files of a task; `count` is told their bytes."""
    part = Part(task.split)
    try:
        if task.form == "idx":
            _check_idx(part, *task.paths)
        elif task.form == "binary":
            _check_binary(part, *task.paths)
        else:
            _check_pickle(part, *task.paths)
    except OSError as error:
        part.wrong("file", str(error.filename or task.paths[0]), f"cannot be read ({error})")
    count(sum(path.stat().st_size for path in task.paths))
    return part


def _check_idx(part: Part, images: Path, labels: Path) -> None:
    shapes = {}
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "idx"
        for path, dimensions in ((images, 3), (labels, 1)):
            try:
                shapes[path] = idx.shape(path, dimensions)
                if path.suffix == ".gz" or path is labels:
                    unpack(path, dimensions, unpacked)  # whole, to see that it can be
            except DataError as error:
                _told(part, path, error)
        if len(shapes) < 2:
            return
        try:
            idx.shape_of(images, labels)
        except DataError as error:
            _told(part, images, error)
        if any(finding.place in (str(images), str(labels)) for finding in part.findings):
            return
        values = np.fromfile(unpacked, np.uint8, offset=idx.head_size(1))
    many, rows, columns = shapes[images]
    part.images += many
    part.sizes[columns, rows] += many
    part.looks["grey"] = (many, (str(images),))
    _count_labels(part, labels, values.tolist(), idx.head_size(1), 1)


def _check_binary(part: Part, path: Path) -> None:
    try:
        cifar.records(path)
    except DataError as error:
        whole = path.stat().st_size // cifar.RECORD * cifar.RECORD
        place = f"{path} at byte {whole}"
        part.wrong("record", str(path), reason(error, place), whole)
        if path.stat().st_size > whole:  # the one that is cut short
            part.images += 1
            part.unreadable += 1
    values = np.fromfile(path, np.uint8)[:: cifar.RECORD][: path.stat().st_size // cifar.RECORD]
    _count_pictures(part, path, len(values))
    _count_labels(part, path, values.tolist(), 0, cifar.RECORD)


def _check_pickle(part: Part, path: Path) -> None:
    try:
        batch = cifar.read_batch(path)
    except DataError as error:
        _told(part, path, error)
        return
    _count_pictures(part, path, len(batch.labels))
    part.labels.update(batch.labels)


def _count_pictures(part: Part, path: Path, many: int) -> None:
    part.images += many
    if many:
        part.sizes[cifar.SIDE, cifar.SIDE] += many
        part.looks["RGB"] = (many, (str(path),))


def _count_labels(part: Part, path: Path, labels: Iterable[int], head: int, step: int) -> None:
    for number, label in enumerate(labels):
        part.labels[label] += 1
        if label >= _CLASSES:
            message = f"label {label}; valid are 0 to {_CLASSES - 1}"
            part.wrong("label", str(path), message, head + number * step)


def _told(part: Part, path: Path, error: DataError) -> None:
    """An error of a whole file, or of its header."""
    text = str(error)
    at = text.startswith(f"{path} at byte 0: ")
    place = f"{path} at byte 0" if at else str(path)
    part.wrong("file", str(path), reason(error, place), 0 if at else -1)
