"""The findings of a check of a data set, and their sum over its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from raysuite.data.header import Header
from raysuite.data.pixels import decode, header_of
from raysuite.data.processes import Count
from raysuite.errors import DataError
from raysuite.spec.data import DataOptions, root_of

Kind = Literal["file", "class", "image", "record", "index", "label"]
KEEP = 100_000
"""Findings that are kept with their places; all are counted."""
KEEP_PLACES = 20
"""Places that are kept of each kind of images."""


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong, or, with `note`, worth knowing."""

    place: str
    """The file or folder."""
    offset: int
    """Byte at which it begins; -1 where it is the whole file."""
    kind: Kind
    message: str
    note: bool = False

    def __str__(self) -> str:
        at = "" if self.offset < 0 else f" at byte {self.offset}"
        return f"{self.place}{at}: {self.message}"


@dataclass
class Part:
    """What one process found in one part of a split."""

    split: str
    images: int = 0
    """Images, unreadable ones included."""
    unreadable: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    """Images of each class, unreadable ones included where their class is known."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Images of each width and height, in pixels."""
    looks: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """Images of each look (`JPEG RGB`, `JPEG CMYK`, ...), and the places of the first of them."""
    findings: list[Finding] = field(default_factory=list)

    def wrong(self, kind: Kind, place: str, message: str, offset: int = -1) -> None:
        self.findings.append(Finding(place, offset, kind, message))

    def note(self, kind: Kind, place: str, message: str) -> None:
        self.findings.append(Finding(place, -1, kind, message, note=True))

    def broken(self, path: Path, error: DataError) -> None:
        """Add an error of a whole file, or of its header."""
        at = str(error).startswith(f"{path} at byte 0: ")
        place = f"{path} at byte 0" if at else str(path)
        self.wrong("file", str(path), reason(error, place), 0 if at else -1)

    def label_bytes(
        self, path: Path, labels: Iterable[int], classes: int, head: int, step: int
    ) -> None:
        """Count labels that lie in a file, `step` bytes apart from byte `head` on."""
        for number, label in enumerate(labels):
            self.labels[label] += 1
            if label >= classes:
                message = f"label {label}; valid are 0 to {classes - 1}"
                self.wrong("label", str(path), message, head + number * step)

    def look(self, name: str, place: str, offset: int = -1) -> None:
        count, places = self.looks.get(name, (0, ()))
        if len(places) < KEEP_PLACES:
            places = (*places, place if offset < 0 else f"{place} at byte {offset}")
        self.looks[name] = (count + 1, places)


@dataclass(frozen=True)
class SplitReport:
    images: int
    """Images, unreadable ones included."""
    unreadable: int
    classes: Mapping[str, int]
    """Images by class: its name, or its label where names are unknown."""
    sizes: Mapping[tuple[int, int], int]
    """Images by width and height, in pixels."""
    looks: Mapping[str, int]
    """Images by look: `JPEG RGB`, `JPEG CMYK`, ..."""


@dataclass(frozen=True)
class Report:
    """All that was found: errors first, in order of their places."""

    path: Path
    form: str
    splits: Mapping[str, SplitReport]
    findings: tuple[Finding, ...]
    """At most KEEP of them."""
    errors: int
    """Things that are wrong, also those that were not kept."""

    @property
    def ok(self) -> bool:
        return not self.errors


class Tally:
    """Adds up Parts."""

    def __init__(self) -> None:
        self.splits: dict[str, Part] = {}
        self._findings: list[Finding] = []
        self._errors = 0

    def add(self, part: Part) -> None:
        """Add a part, which is not kept."""
        whole = self.splits.setdefault(part.split, Part(part.split))
        whole.images += part.images
        whole.unreadable += part.unreadable
        whole.labels.update(part.labels)
        whole.sizes.update(part.sizes)
        for name, (count, places) in part.looks.items():
            before, known = whole.looks.get(name, (0, ()))
            whole.looks[name] = (before + count, tuple(sorted((*known, *places))[:KEEP_PLACES]))
        self.found(part.findings)

    def found(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._errors += not finding.note
            if len(self._findings) < KEEP:
                self._findings.append(finding)

    def report(self, path: Path, form: str, names: Mapping[int, str]) -> Report:
        """The sum; `names` are the classes' by label."""
        for split, part in self.splits.items():
            self.found(_odd_looks(split, part))
        splits = {
            split: SplitReport(
                images=part.images,
                unreadable=part.unreadable,
                classes={
                    names.get(label, str(label)): count
                    for label, count in sorted(part.labels.items())
                },
                sizes=dict(part.sizes),
                looks={name: count for name, (count, _) in sorted(part.looks.items())},
            )
            for split, part in self.splits.items()
        }
        findings = sorted(self._findings, key=lambda each: (each.note, each))
        return Report(path, form, splits, tuple(findings), self._errors)


def _odd_looks(split: str, part: Part) -> Iterable[Finding]:
    """Notes on images that are not like the others of their split."""
    plain = {name: count for name, (count, _) in part.looks.items() if name.endswith(_PLAIN)}
    grey = sum(count for name, count in plain.items() if name.endswith("grey"))
    rare = "grey" if grey * 2 <= sum(plain.values()) else "RGB"
    for name, (count, places) in sorted(part.looks.items()):
        if name in plain and (not name.endswith(rare) or len({*map(_colour, plain)}) == 1):
            continue
        others = f" among {'colour' if rare == 'grey' else 'grey'} ones" if name in plain else ""
        more = f", and {count - 3} more" if count > 3 else ""
        message = f"{count} {name}{others}, which every loader converts: " + ", ".join(places[:3])
        yield Finding(split, -1, "image", message + more, note=True)


_PLAIN = ("grey", "RGB")


def _colour(name: str) -> str:
    return name.rpartition(" ")[2]


def check_image(part: Part, data: bytes, place: str, decoded: bool, offset: int = -1) -> None:
    """Add to `part` what one image is; all its pixels are decoded if `decoded`."""
    part.images += 1
    try:
        header = header_of(data, place)
        if decoded:
            decode(data, 1 if header.channels == 1 else 3, place)
    except DataError as error:
        part.unreadable += 1
        reason = error.__cause__ or error
        part.wrong("image", place, f"not a readable image ({reason})", offset)
        return
    part.sizes[header.width, header.height] += 1
    part.look(_look(header), place, offset)


def _look(header: Header) -> str:
    if header.kind == "other":
        return f"none of JPEG and PNG, {'grey' if header.channels == 1 else 'coloured'}"
    kind = header.kind.upper()
    if header.bits != 8:
        return f"{kind} of {header.bits} bits"
    if header.kind == "jpeg":
        return f"{kind} {({1: 'grey', 3: 'RGB'}).get(header.channels, 'CMYK')}"
    return (
        f"{kind} {({1: 'grey', 3: 'RGB'}).get(header.channels, 'with a palette or transparency')}"
    )


@dataclass(frozen=True)
class Listed:
    """Tasks, each of which can be done by another process."""

    tasks: tuple[Callable[[Count], Part], ...]
    total: int
    unit: Literal["images", "bytes"]
    """What tasks count, and how much there is of it."""
    names: dict[int, str]
    """Of the classes, by label as in the files; empty where they are not known."""
    findings: tuple[Finding, ...]


def reason(error: Exception, place: str) -> str:
    """An error's message without its place."""
    return str(error).removeprefix(f"{place}: ")


@dataclass(frozen=True)
class Target:
    """A data set on disk, and what is known of its labels."""

    data: DataOptions
    names: tuple[str, ...] = ()
    """Of the classes, by label from 0; empty where they are not known."""
    first_label: int | None = None
    """The number of the first class in TFRecords; None where it is not known."""

    @property
    def root(self) -> Path:
        """The folder; the name of the user's own."""
        return Path(self.data.name) if self.data.own else root_of(self.data)
