"""Journals of writers that were killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raysuite.records import EpochFinished, Journal, Results, RunFailed, read_journal
from raysuite.records.schema import json_line
from tests.fake_population import write_population
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_sweeps import write_sweep
from tests.json_lines import assert_json, assert_records, schema, strict

FIRST, SECOND = (RunFailed(run_id="a", reason="error", message=each) for each in ("1", "2"))


@pytest.mark.parametrize("cut", [1, 40])
def test_what_comes_behind_half_a_line_stands_alone(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for record in (FIRST, SECOND):
        journal.write(record)
    journal.file.write_bytes(journal.file.read_bytes()[:-cut])
    Journal(journal.file).write(SECOND)
    assert read_journal(journal.file) == [FIRST, SECOND]


def test_a_whole_journal_gets_no_empty_line(tmp_path: Path) -> None:
    for record in (FIRST, SECOND):
        Journal(tmp_path / "journal.jsonl").write(record)
    lines = (tmp_path / "journal.jsonl").read_text("utf-8").splitlines()
    assert [bool(line) for line in lines] == [True, True]


GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "results").rglob("journal.jsonl"))


def test_the_json_schema_holds_for_every_journal(tmp_path: Path) -> None:
    """Of earlier versions, of made-up suites, sweeps and populations; for real ones see
    tests/integration/test_run.py."""
    one = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]")
    write_results(tmp_path / "suite", one, fails={0: FIRST})
    write_sweep(tmp_path / "sweep")
    write_population(tmp_path / "population")
    files = [*GOLDEN, *tmp_path.rglob("journal.jsonl")]
    kinds: dict[str, list[str]] = {}
    for file in files:
        for line in file.read_text("utf-8").splitlines():
            kinds.setdefault(json.loads(line)["kind"], []).append(line)
    assert {"run_judged", "run_pruned", "run_failed", "time_shares", "run_costs"} <= kinds.keys()
    for lines in kinds.values():
        assert_records(lines[:20])
    assert list(schema().iter_errors({"kind": "run_started", "run_id": "a"}))


def test_a_line_of_json_knows_no_nan() -> None:
    records = list(read_journal(GOLDEN[0]))
    found = next(r for r in records if isinstance(r, EpochFinished))
    lines = [json_line(each) for each in records]
    lines.append(json_line(found.model_copy(update={"losses": [float("nan"), 1.0]})))
    assert_json(lines)
    assert strict(lines[-1])["losses"] == [None, 1.0]
    with pytest.raises(ValueError, match="NaN"):
        assert_json(["[NaN]"])


def test_the_newest_results_began_last(tmp_path: Path) -> None:
    """By the names that raysuite gives; a folder with another name by the time of its plans."""
    for name in ("20261101-120000", "20261102-120000", "zebra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("[]")
    for old in ("20261102-120000", "zebra"):  # plans of a sweep are added later
        os.utime(tmp_path / old / "plan.json", (0, 0))
    assert Results.open(tmp_path).folder.name == "20261102-120000"
    os.utime(tmp_path / "zebra" / "plan.json")
    assert Results.open(tmp_path).folder.name == "zebra"
