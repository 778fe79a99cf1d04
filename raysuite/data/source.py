"""Images by sample number: the one way by which every loader gets at its bytes."""

from __future__ import annotations

from typing import Protocol

from raysuite.data.base import Sample
from raysuite.data.prepared import Prepared, Split
from raysuite.lazy import load


class Source(Protocol):
    """One split's images. Safe from several threads; not to be shared by processes."""

    def read(self, sample: int) -> tuple[Sample, int]:
        """The image and its label, from 0. Raises DataError that names file and offset."""

    def place(self, sample: int) -> str:
        """Where the sample lies, as an error names it."""

    def file(self, sample: int) -> str | None:
        """The file that the sample lies in; None where no file tells when it changed."""

    def close(self) -> None:
        """Close the files."""


_SOURCES = {
    "folder": "raysuite.data.sources.folder:FolderSource",
    "tfrecord": "raysuite.data.sources.records:RecordSource",
    "idx": "raysuite.data.sources.pixels:IdxSource",
    "binary": "raysuite.data.sources.pixels:CifarSource",
    "pickle": "raysuite.data.sources.pixels:CifarSource",
    "own": "raysuite.data.sources.own:OwnSource",
}


def open_source(prepared: Prepared, split: Split) -> Source:
    """The source of a split. Raises DataError where its files are missing or disagree."""
    source: Source = load(_SOURCES[prepared.form])(prepared, split)
    return source
