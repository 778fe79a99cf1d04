"""Images in TFRecord shards."""

from __future__ import annotations

import os

from raysuite.data.formats.example import decode_example
from raysuite.data.formats.listing import RecordListing
from raysuite.data.formats.tfrecord import read_record
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError
from raysuite.layouts.records import first_label


class RecordSource:
    """TFRecord shards, read in any order by their index; the label comes from the record."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        assert prepared.listing is not None
        listing = RecordListing.read(prepared.listing, split)
        self._records = listing.records
        self._paths = [str(prepared.files / os.fsdecode(path)) for path in listing.shards.tolist()]
        features = prepared.data.features
        self._names = (features.image, features.label)
        self._first = first_label(prepared.data)
        self._descriptors: list[int] = []
        try:
            for path in self._paths:
                self._descriptors.append(os.open(path, os.O_RDONLY))
        except OSError as error:
            self.close()
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); it was there when the data set was "
                "prepared"
            ) from error

    def read(self, sample: int) -> tuple[bytes, int]:
        shard, offset, size = self._records[sample].tolist()
        place = self.place(sample)
        data = read_record(self._descriptors[shard], offset, size, place)
        image, label = decode_example(data, place, *self._names)
        return image, label - self._first

    def place(self, sample: int) -> str:
        shard, offset, _ = self._records[sample]
        return f"{self._paths[shard]} at byte {offset}"

    def file(self, sample: int) -> str:
        return self._paths[int(self._records[sample, 0])]

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
