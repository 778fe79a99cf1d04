"""Journals of writers that were killed."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from raysuite.records import EpochFinished, Journal, RunFailed, read_journal
from raysuite.records.schema import json_line, record_schema

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


GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "results").rglob("journal.jsonl"))


def test_the_json_schema_holds_for_every_journal() -> None:
    valid = jsonschema.Draft202012Validator(record_schema())
    for file in GOLDEN:
        for line in file.read_text("utf-8").splitlines():
            assert not list(valid.iter_errors(json.loads(line)))
    assert list(valid.iter_errors({"kind": "run_started", "run_id": "a"}))


def test_a_line_of_json_knows_no_nan() -> None:
    found = next(r for r in read_journal(GOLDEN[0]) if isinstance(r, EpochFinished))
    line = json_line(found.model_copy(update={"losses": [float("nan"), 1.0]}))
    strict = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["losses"] == [None, 1.0]
