"""The findings of a check of a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from raysuite.data.pixels import check_whole, header_of
from raysuite.data.processes import Count
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions, root_of

Kind = Literal["file", "class", "image", "record", "index", "label"]


@dataclass(frozen=True, order=True)
class Finding:
    """An error in a data set, or, if `note` is True, a remark."""

    place: str
    """The file or folder."""
    offset: int
    """The offset of the first byte concerned; -1 for the whole file."""
    kind: Kind
    message: str
    note: bool = False

    def __str__(self) -> str:
        at = "" if self.offset < 0 else f" at byte {self.offset}"
        return f"{self.place}{at}: {self.message}"


@dataclass
class Part:
    """The counts and findings of one part of a split."""

    split: str
    images: int = 0
    """The number of images, unreadable ones included."""
    unreadable: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    """Number of images of each class, including unreadable images if their class is known."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Number of images of each width and height, in pixels."""
    names: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of images with each (class name, label), if files contain class names."""
    findings: list[Finding] = field(default_factory=list)

    def wrong(self, kind: Kind, place: str, message: str, offset: int = -1) -> None:
        self.findings.append(Finding(place, offset, kind, message))

    def note(self, kind: Kind, place: str, message: str) -> None:
        self.findings.append(Finding(place, -1, kind, message, note=True))

    def broken(self, path: Path, error: DataError) -> None:
        """Add an error that concerns a whole file or its header."""
        at = str(error).startswith(f"{path} at byte 0: ")
        place = f"{path} at byte 0" if at else str(path)
        self.wrong("file", str(path), reason(error, place), 0 if at else -1)

    def label_bytes(
        self, path: Path, labels: Iterable[int], classes: int, head: int, step: int
    ) -> None:
        """Count the labels of a file, and add an error for each label that is not below `classes`.
        Label i is at byte `head + i * step`."""
        for number, label in enumerate(labels):
            self.labels[label] += 1
            if label >= classes:
                message = f"label {label}; valid: 0 to {classes - 1}"
                self.wrong("label", str(path), message, head + number * step)

    def add(self, other: Part) -> None:
        """Add the counts of another part of the same split."""
        self.images += other.images
        self.unreadable += other.unreadable
        self.labels.update(other.labels)
        self.sizes.update(other.sizes)
        self.names.update(other.names)


@dataclass(frozen=True)
class SplitReport:
    """The numbers of images of a split: in total, unreadable ones, by class name (by label if the
    classes have no names), and by (width, height)."""

    images: int
    unreadable: int
    classes: Mapping[str, int]
    sizes: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Report:
    """The result of a check. Findings are sorted: errors before notes, then by place."""

    path: Path
    form: str
    splits: Mapping[str, SplitReport]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        return sum(not each.note for each in self.findings)

    @property
    def ok(self) -> bool:
        return not self.errors


def check_image(part: Part, data: bytes, place: str, decoded: bool, offset: int = -1) -> None:
    """Count an image in `part`, and add an error if it is unreadable. If `decoded`, all its pixels
    are decoded, else only its header is read."""
    part.images += 1
    try:
        header = header_of(data, place)
        if decoded:
            check_whole(data, place)
    except DataError as error:
        part.unreadable += 1
        reason = error.__cause__ or error
        part.wrong("image", place, f"not a readable image ({reason})", offset)
        return
    part.sizes[header.width, header.height] += 1


@dataclass(frozen=True)
class Listed:
    """The tasks of a check; each can run in a separate process."""

    tasks: tuple[Callable[[Count], Part], ...]
    total: int
    unit: Literal["images", "samples", "bytes"]
    """The unit of `total` and of the tasks' progress."""
    names: dict[int, str]
    """Label in the files -> class name; empty if unknown."""
    findings: tuple[Finding, ...]


def reason(error: Exception, place: str) -> str:
    """An error's message without its place."""
    return str(error).removeprefix(f"{place}: ").removeprefix(f"{place} ")


@dataclass(frozen=True)
class Target:
    """A data set on disk, with its class names and its first label if they are known."""

    data: DataOptions
    names: tuple[str, ...] = ()
    """Class names by label from 0; empty if unknown."""
    first_label: int | None = None
    """The label of the first class in TFRecords; None if unknown."""
    tensors: bool = False
    """Whether a user's own data set gives (inputs, targets) for a task other than
    classification."""

    @property
    def root(self) -> Path:
        """The folder, or the name of the user's own data set."""
        return Path(self.data.name) if self.data.own else root_of(self.data)
