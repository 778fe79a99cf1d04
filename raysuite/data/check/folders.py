"""Image folders: every file, and every class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raysuite.data.check.images import check_image
from raysuite.data.check.listed import Listed
from raysuite.data.check.report import Finding, Part
from raysuite.data.check.targets import Target
from raysuite.data.formats.folder import scan
from raysuite.data.processes import Count
from raysuite.errors import DataError
from raysuite.layouts.folders import class_names, images_in, others_in
from raysuite.spec.datasets import IMAGE_SUFFIXES, NAMED, SPLITS

_CHUNK = 128
"""Images of one task."""

Images = dict[str, list[tuple[bytes, int]]]
"""Per split the path of each image, relative to the set's folder, and its label; -1: unknown."""


@dataclass(frozen=True)
class Task:
    """Some images of one split."""

    split: str
    root: bytes
    images: tuple[tuple[bytes, int], ...]
    decode: bool


def list_folder(target: Target, decode: bool) -> Listed:
    """The images of every split, however incomplete the folder is."""
    root = target.root
    findings: list[Finding] = []
    try:
        classes, listings = scan(root, val_may_lack=target.data.name in NAMED)
        names = dict(enumerate(classes))
        images: Images = {
            split: list(zip(map(bytes, each.paths), each.labels.tolist(), strict=True))
            for split, each in listings.items()
        }
    except DataError as error:
        names, images = _leniently(root)
        findings += _class_findings(root, names, images)
        if not findings:
            findings.append(Finding(str(root), -1, "class", str(error)))
    for split in SPLITS:
        findings += _passed_over(root / split)
    tasks = tuple(
        Task(split, os.fsencode(root), tuple(each[start : start + _CHUNK]), decode)
        for split, each in images.items()
        for start in range(0, len(each), _CHUNK)
    )
    total = sum(map(len, images.values()))
    return Listed(check_files, tasks, total, "images", names, tuple(findings))


def check_files(task: Task, count: Count) -> Part:
    """Look at the images of a task; `count` is told each."""
    part = Part(task.split)
    for path, label in task.images:
        whole = os.path.join(task.root, path)
        place = whole.decode("utf-8", "backslashreplace")
        if label >= 0:
            part.labels[label] += 1
        try:
            with open(whole, "rb") as file:
                data = file.read()
        except OSError as error:
            part.images += 1
            part.unreadable += 1
            part.wrong("image", place, f"cannot be read ({error.strerror})")
        else:
            check_image(part, data, place, task.decode)
        count(1)
    return part


def _leniently(root: Path) -> tuple[dict[int, str], Images]:
    """Class folders of either split, and the images in them."""
    folders = {split: root / split for split in SPLITS if (root / split).is_dir()}
    classes = sorted({name for each in folders.values() for name in class_names(each)})
    images: Images = {}
    for split, folder in folders.items():
        images[split] = [(os.fsencode(f"{split}/{name}"), -1) for name in images_in(folder)]
        for label, name in enumerate(classes):
            if (folder / name).is_dir():
                files = images_in(folder / name)
                images[split] += [(os.fsencode(f"{split}/{name}/{file}"), label) for file in files]
    return dict(enumerate(classes)), images


def _class_findings(root: Path, names: dict[int, str], images: Images) -> Iterator[Finding]:
    for split in SPLITS:
        if split not in images:
            yield Finding(str(root / split), -1, "class", f"no folder of {split} images")
            continue
        if not images[split]:
            yield Finding(str(root / split), -1, "class", "no images")
            continue
        filled = Counter(label for _, label in images[split])
        if set(filled) == {-1}:
            continue  # one flat folder; what it lacks is told by the error itself
        for label, name in names.items():
            folder = root / split / name
            if not folder.is_dir():
                (other,) = (other for other in SPLITS if other != split)
                message = f"no folder of this class, which {other} has"
                yield Finding(str(folder), -1, "class", message)
            elif not filled[label] and split == "train":
                yield Finding(str(folder), -1, "class", "the class has no images")


def _passed_over(split: Path) -> Iterator[Finding]:
    """A note on what does not count as images."""
    if not split.is_dir():
        return
    classes = class_names(split)
    found = [(split, name) for name in others_in(split, nested=True)]
    found += [(split, name) for name in images_in(split) if classes]
    found += [(split / each, name) for each in classes for name in others_in(split / each)]
    if found:
        others = [str(folder / name) for folder, name in found]
        more = f", and {len(others) - 3} more" if len(others) > 3 else ""
        message = (
            f"{len(others)} entries are passed over: valid are files in class folders that end in "
            f"{', '.join(IMAGE_SUFFIXES)}: "
        )
        yield Finding(str(split), -1, "file", message + ", ".join(others[:3]) + more, note=True)
