"""Journals of writers that were killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import Journal, RunFailed, read_journal

FIRST, SECOND = (RunFailed(run_id="a", reason="error", message=each) for each in ("1", "2"))


@pytest.mark.parametrize("cut", [1, 40])
def test_what_comes_behind_half_a_line_stands_alone(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for record in (FIRST, SECOND):
        journal.write(record)
    journal.file.write_bytes(journal.file.read_bytes()[:-cut])
    Journal(journal.file).write(SECOND)
    found = list(read_journal(journal.file))
    assert found == ([FIRST, SECOND, SECOND] if cut == 1 else [FIRST, SECOND])


def test_a_whole_journal_gets_no_empty_line(tmp_path: Path) -> None:
    for record in (FIRST, SECOND):
        Journal(tmp_path / "journal.jsonl").write(record)
    lines = (tmp_path / "journal.jsonl").read_text("utf-8").splitlines()
    assert [bool(line) for line in lines] == [True, True]
