"""What a look through a data set found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["file", "class", "image", "record", "index", "label"]
KEEP = 100_000
"""Findings that are kept with their places; all are counted."""
KEEP_PLACES = 20
"""Places that are kept of each look of images."""


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
    """Images of each look (`JPEG RGB`, `JPEG CMYK`, ...), and where the first of them lie."""
    findings: list[Finding] = field(default_factory=list)

    def wrong(self, kind: Kind, place: str, message: str, offset: int = -1) -> None:
        """Add something that is wrong."""
        self.findings.append(Finding(place, offset, kind, message))

    def note(self, kind: Kind, place: str, message: str, offset: int = -1) -> None:
        """Add something worth knowing."""
        self.findings.append(Finding(place, offset, kind, message, note=True))

    def look(self, name: str, place: str, offset: int = -1) -> None:
        """Count an image of this look."""
        count, places = self.looks.get(name, (0, ()))
        if len(places) < KEEP_PLACES:
            places = (*places, place if offset < 0 else f"{place} at byte {offset}")
        self.looks[name] = (count + 1, places)


@dataclass(frozen=True)
class SplitReport:
    """Counts of one split."""

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
        """Whether nothing is wrong."""
        return not self.errors


class Tally:
    """Adds up Parts."""

    def __init__(self) -> None:
        self.splits: dict[str, Part] = {}
        self._findings: list[Finding] = []
        self._errors = 0

    def add(self, part: Part) -> None:
        """Take in a part, and forget it."""
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
        """Add findings."""
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
