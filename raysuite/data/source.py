"""Images by sample number: the one way by which every loader gets at its bytes."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from raysuite.data.base import Sample
from raysuite.data.formats.example import decode_example
from raysuite.data.formats.listing import Listing
from raysuite.data.formats.tfrecord import read_index, read_record
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError
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
    "folder": "raysuite.data.source:FolderSource",
    "tfrecord": "raysuite.data.source:RecordSource",
}


def open_source(prepared: Prepared, split: Split) -> Source:
    """The source of a split. Raises DataError where its files are missing or disagree."""
    source: Source = load(_SOURCES[prepared.form])(prepared, split)
    return source


class FolderSource:
    """A file per image; the label comes from the listing."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        assert prepared.listing is not None
        self._root = os.fsencode(prepared.files)
        self._listing = Listing.read(prepared.listing, split)

    def read(self, sample: int) -> tuple[bytes, int]:
        try:
            with open(self._path(sample), "rb") as file:
                return file.read(), int(self._listing.labels[sample])
        except OSError as error:
            raise DataError(
                f"{self.place(sample)}: cannot be read ({error.strerror}); it was there when "
                "the data set was prepared"
            ) from error

    def place(self, sample: int) -> str:
        return os.fsdecode(self._path(sample))

    def file(self, sample: int) -> str:
        return self.place(sample)

    def close(self) -> None:
        pass

    def _path(self, sample: int) -> bytes:
        return os.path.join(self._root, bytes(self._listing.paths[sample]))


class RecordSource:
    """TFRecord shards, read in any order by their index; the label comes from the record."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        folder, samples = prepared.files, prepared.samples(split)
        self._paths = sorted(folder.glob(f"{split}-*.tfrecord"))
        indices = [read_index(path.with_suffix(".idx")) for path in self._paths]
        # [n, 3]: shard, offset, size
        self._records = np.concatenate(
            [np.empty((0, 3), np.int64)]
            + [np.insert(index, 0, shard, axis=1) for shard, index in enumerate(indices)]
        )
        if len(self._records) != samples:
            raise DataError(
                f"{folder}: {len(self._records)} {split} records in {len(self._paths)} files; "
                f"expected are {samples}; delete the folder's parent to have it written again"
            )
        self._descriptors = [os.open(path, os.O_RDONLY) for path in self._paths]

    def read(self, sample: int) -> tuple[bytes, int]:
        shard, offset, size = self._records[sample].tolist()
        place = self.place(sample)
        return decode_example(read_record(self._descriptors[shard], offset, size, place), place)

    def place(self, sample: int) -> str:
        shard, offset, _ = self._records[sample]
        return f"{self._paths[shard]} at byte {offset}"

    def file(self, sample: int) -> str:
        return str(self._paths[self._records[sample, 0]])

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
