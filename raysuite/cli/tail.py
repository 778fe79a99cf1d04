"""Journals read as they grow: each byte once."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from raysuite.records import Record

_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class Tail:
    """The Records that were added to one journal since the last look."""

    def __init__(self) -> None:
        self._read_bytes = 0

    def new(self, journal: Path) -> list[Record]:
        """Whole lines only: one that is still being written is left for the next look."""
        try:
            if journal.stat().st_size <= self._read_bytes:
                return []
            with journal.open("rb") as stream:
                stream.seek(self._read_bytes)
                grown = stream.read()
        except FileNotFoundError:
            return []
        whole = grown[: grown.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        records = []
        for line in whole.splitlines():
            try:
                records.append(_RECORD.validate_json(line))
            except ValidationError:
                continue  # cut off by a crash
        return records
