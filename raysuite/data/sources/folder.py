"""Images that are single files."""

from __future__ import annotations

import os

from raysuite.data.formats.listing import Listing
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError


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
