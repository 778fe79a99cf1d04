"""Journals of writers that were killed."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.plan import make_plans
from raysuite.records import (
    EpochFinished,
    Journal,
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunStarted,
    read_journal,
    results_figures,
)
from raysuite.records.base import checked_line
from raysuite.records.confusion import class_figures
from raysuite.records.ends import is_left
from raysuite.records.journal import began, class_names, is_damaged, recorded_epochs
from raysuite.records.predicted import Interval, RunPredicted
from raysuite.records.schema import json_line
from raysuite.spec import parse_document
from tests.fake_batches import batch_found
from tests.fake_population import write_population
from tests.fake_results import TWELVE_ROWS, run_records, write_results
from tests.fake_sweeps import write_sweep
from tests.json_lines import assert_json, assert_records, schema, strict

PLAN = make_plans(parse_document(TWELVE_ROWS.replace("REPEATS", "1"), "spec.yaml"), gpus=0)[0]


def resumed(epoch: int) -> RunStarted:
    plan = PLAN.model_dump(mode="json")
    return RunStarted(run_id=PLAN.run_id, plan=plan, environment={}, first_epoch=epoch)


FIRST, SECOND = (RunFailed(run_id="a", reason="error", message=each) for each in ("1", "2"))


@pytest.mark.parametrize("cut", [1, 40])
def test_what_comes_behind_half_a_line_stands_alone(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for record in (FIRST, SECOND):
        journal.write(record)
    journal.file.write_bytes(journal.file.read_bytes()[:-cut])
    Journal(journal.file).write(SECOND)
    assert read_journal(journal.file) == [FIRST, SECOND]


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a" / "journal.jsonl")
    journal.write(FIRST)
    journal.file.write_bytes(journal.file.read_bytes().replace(b'"1"', b'"7"'))
    [found] = read_journal(journal.file)
    assert isinstance(found, RunFailed)
    assert (found.run_id, found.reason) == ("a", "damaged")
    assert str(journal.file) in found.message


def test_a_damaged_journal_keeps_how_its_batch_was_found(tmp_path: Path) -> None:
    journal, found = Journal(tmp_path / "a" / "journal.jsonl"), batch_found("a")
    for record in (found, FIRST):
        journal.write(record)
    journal.file.write_bytes(journal.file.read_bytes().replace(b'"1"', b'"7"'))
    kept, end = read_journal(journal.file)
    assert kept == found
    assert isinstance(end, RunFailed)
    assert end.reason == "damaged"


def test_bytes_that_are_no_utf_8_are_escaped(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    started = RunStarted(run_id="a", plan={"label": {name: [name]}}, environment={"host": name})
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write(started)
    [found] = read_journal(journal.file)
    safe = r"caf\xe9"
    assert found == started.model_copy(
        update={"plan": {"label": {safe: [safe]}}, "environment": {"host": safe}}
    )


START = run_records(PLAN)[0]
EPOCHS = [each for each in run_records(PLAN) if isinstance(each, EpochFinished)]
END = run_records(PLAN)[-1]
EARLY = END.model_copy(update={"stopped_early": True})


@pytest.mark.parametrize(
    ("records", "is_damaged"),
    [
        ([START, *EPOCHS, END], False),
        ([START, *EPOCHS[:3], END], True),
        ([START, EPOCHS[0], *EPOCHS[2:], END], True),
        ([START, *EPOCHS[:2]], False),
        ([START, *EPOCHS[:2], resumed(1), *EPOCHS[1:], END], False),
        ([START, *EPOCHS[:2], resumed(2), *EPOCHS[2:], END], False),
        ([START, *EPOCHS[:2], resumed(3), *EPOCHS[3:], END], True),
        ([START, *EPOCHS[:3], resumed(1), *EPOCHS[2:], END], True),  # the second was not kept
        ([START, EPOCHS[1], resumed(1), *EPOCHS[1:], END], True),  # damaged before
        ([START, EPOCHS[0], EARLY], False),
        ([START, EARLY], True),
        ([START, EPOCHS[1], START, *EPOCHS, END], False),  # begun anew
        ([*EPOCHS, END], True),
    ],
)
def test_epochs_are_compared_with_the_plan(
    tmp_path: Path, records: list[Record], is_damaged: bool
) -> None:
    results = Results(tmp_path)
    results.write_plans([PLAN.model_dump(mode="json")])
    for record in records:
        Journal(results.journal_file(PLAN.run_id)).write(record)
    [run] = results_figures(results)
    end = results.end_of(PLAN.run_id)
    assert (run.status == "failed") == (getattr(end, "reason", "") == "damaged") == is_damaged
    if is_damaged:
        assert (run.epochs, run.throughput, run.gate) == ((), None, "not checked")
        assert is_left(results.end_of(PLAN.run_id))


@pytest.mark.parametrize(
    ("records", "line"),
    [
        ([START, EPOCHS[0], None, resumed(1), *EPOCHS[1:], END], 0),
        ([START, EPOCHS[0], None, FIRST], 0),
        ([START, None, EPOCHS[0], None], 2),
        ([START, EPOCHS[0], None, *EPOCHS[1:]], 3),
        ([START, None, EPOCHS[0], resumed(1)], 2),
        ([START, None, EPOCHS[0], START, EPOCHS[0]], 0),
    ],
)
def test_the_first_line_without_a_record_is_damage_unless_an_attempt_follows(
    tmp_path: Path, records: list[Record | None], line: int
) -> None:
    file = tmp_path / "journal.jsonl"
    lines = [b"{}" if each is None else checked_line(each) for each in records]
    file.write_bytes(b"".join(each + b"\n" for each in lines))
    found = read_journal(file)
    assert is_damaged(found) == bool(line)
    if line:
        [end] = found
        assert isinstance(end, RunFailed)
        assert f": line {line} is damaged;" in end.message
        assert end.time == file.stat().st_mtime
    else:
        assert found == [each for each in records if each is not None]


def test_the_epochs_of_a_run_are_those_after_which_it_was_resumed_last() -> None:
    assert (is_damaged([]), recorded_epochs([])) == (False, 0)
    assert recorded_epochs([START, *EPOCHS[:3]]) == 3
    assert recorded_epochs([START, *EPOCHS[:3], resumed(1)]) == 1
    assert recorded_epochs([START, *EPOCHS[:3], resumed(1), EPOCHS[1]]) == 2


def test_class_names_are_those_of_the_last_record_that_has_them(tmp_path: Path) -> None:
    def started(**names: list[str]) -> RunStarted:
        return RunStarted(run_id="a", plan={"dataset": names}, environment={})

    def ended(*names: str) -> RunFinished:
        classes = class_figures(names, [[1, 0], [0, 1]]) if names else None
        return END.model_copy(update={"classes": classes})

    for place, (records, names) in enumerate(
        [
            ([started()], ()),
            ([started(class_names=["a", "b"]), started()], ("a", "b")),
            ([started(class_names=["a", "b"]), EPOCHS[0], ended("c", "d")], ("c", "d")),
            ([started(class_names=["a", "b"]), EPOCHS[0], ended()], ("a", "b")),
        ]
    ):
        journal = Journal(tmp_path / f"{place}.jsonl")
        for record in records:
            journal.write(record)
        assert class_names(journal.file) == names


def test_plans_are_added_without_writing_those_before_again(tmp_path: Path) -> None:
    results, made = Results(tmp_path), [{"run_id": str(number)} for number in range(4)]
    results.write_plans(made[:2])
    before = (tmp_path / "plan.json").stat().st_ino
    states = [results.state_of_plans()]
    for plan in (*made[1:], made[3]):
        results.add_plan(plan)
        states.append(Results(tmp_path).state_of_plans())
    assert [a == b for a, b in pairwise(states)] == [True, False, False, True]
    assert (tmp_path / "plan.json").stat().st_ino == before
    assert Results(tmp_path).plans() == made
    results.settle_plans()
    assert Results(tmp_path).plans() == made
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    before = (tmp_path / "plan.json").stat().st_ino
    results.settle_plans()
    assert (tmp_path / "plan.json").stat().st_ino == before, "nothing was added"


def test_plans_that_were_added_belong_to_one_plan_json(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add_plan({"run_id": "0"})
    assert (tmp_path / "plan.json").exists()
    [added] = tmp_path.glob("*.jsonl")
    kept = added.read_bytes()
    results.write_plans([{"run_id": "1"}])
    added.write_bytes(kept)  # as after a power cut before it was removed
    assert results.plans() == [{"run_id": "1"}]
    results.add_plan({"run_id": "2"})
    assert results.plans() == [{"run_id": "1"}, {"run_id": "2"}]
    results.write_plans([{"run_id": "1"}])
    assert results.plans() == [{"run_id": "1"}]
    results.add_plan({"run_id": "2"})
    assert results.plans() == [{"run_id": "1"}, {"run_id": "2"}], "of the same plan.json as before"
    Results(tmp_path).write_plans([{"run_id": "3"}])
    results.add_plan({"run_id": "2"})
    assert results.plans() == [{"run_id": "3"}, {"run_id": "2"}], "of that of another process"


def test_plans_of_earlier_versions_have_no_checksum(tmp_path: Path) -> None:
    results, plans = Results(tmp_path), [{"run_id": "0", "workers": 1}, {"run_id": "1"}]
    (tmp_path / "plan.json").write_text(json.dumps(plans))
    assert results.plans() == plans
    results.add_plan({"run_id": "2"})
    results.settle_plans()
    assert results.plans() == [*plans, {"run_id": "2"}]


def test_a_damaged_plan_that_was_added_is_named(tmp_path: Path) -> None:
    Results(tmp_path).add_plan({"run_id": "0"})
    [added] = tmp_path.glob("*.jsonl")
    added.write_bytes(added.read_bytes().replace(b'"0"', b'"1"'))
    with pytest.raises(UserError, match=f"{added.name} is damaged"):
        Results(tmp_path).plans()
    added.write_text("{}\n")
    with pytest.raises(UserError, match=f"{added.name} is damaged.*empty"):
        Results(tmp_path).plans()


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
    assert Results.open(tmp_path / "zebra").folder == tmp_path / "zebra"
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "plan.json").write_text("[]")
    assert Results.open(tmp_path / "a").folder == deep
    assert Results.open(tmp_path).folder.name == "zebra", "three levels below"
    (tmp_path / "empty").mkdir()
    for name, words in (("empty", "has no plan.json"), ("none", "is not there")):
        with pytest.raises(UserError, match=f"{name} .*{words}"):
            Results.open(tmp_path / name)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"can be made: {tmp_path}/file/.*: Not a directory; give"):
        Results.create(tmp_path / "file")


def test_what_a_folder_lacks_is_none(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert results.plans() == results.commands() == results.timings() == []
    assert results.search() is results.decided() is None
    assert (results.predictions(), results.records("a")) == ({}, [])


def test_a_folder_holds_what_was_written(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_timings([{"began": 1.0, "seconds": {"runs": 2.0}}])
    assert results.timings() == [{"began": 1.0, "seconds": {"runs": 2.0}}]
    results.write_search({"trials": 3}, "a", {"name": "a"})
    found = {"search": {"trials": 3}, "name": "a", "spec": {"name": "a"}, "settings": {}}
    assert results.search() == found
    results.write_search({"trials": 3}, "a", {"name": "a"}, {"seed": 1})
    assert results.search() == found | {"settings": {"seed": 1}}


def test_each_command_is_a_line(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for command in ("raysuite run a.yaml\n--seed 1", "raysuite report"):
        results.add_command(command)
    assert results.commands() == ["raysuite run a.yaml --seed 1", "raysuite report"]


def test_predictions_are_replaced_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    results, interval = Results(tmp_path), Interval(10.0, 8.0, 12.5)
    first, second = (
        RunPredicted(run_id=each, calibration="c.json", throughput=interval) for each in "ab"
    )
    for predictions in ([second], [first, second]):
        results.write_predictions(predictions)
        assert results.predictions() == {each.run_id: each for each in predictions}
    file = tmp_path / "predictions.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"c"'))
    assert results.predictions() == {"b": second}
    assert interval.times(2) == (20.0, 16.0, 25.0)
    assert interval.inverse(100) == (10.0, 8.0, 12.5)


def test_a_results_folder_is_named_by_the_local_time_at_which_it_began(tmp_path: Path) -> None:
    before = int(time.time())
    folder = Results.create(tmp_path).folder
    after = time.time()
    assert before <= began(folder / "plan.json") <= after
    # 5:30 ahead of UTC in unit tests
    first, last = (time.gmtime(moment + 19_800) for moment in (before, after))
    assert first[:6] <= time.strptime(folder.name, "%Y%m%d-%H%M%S")[:6] <= last[:6]


def test_a_run_has_ended_if_its_end_is_the_last_record(tmp_path: Path) -> None:
    """Its first attempt fails, and the second one is left at each of its Records in turn."""
    results = Results(tmp_path)
    assert results.end_of(PLAN.run_id) is None
    failed = FIRST.model_copy(update={"run_id": PLAN.run_id})
    records = [START, EPOCHS[0], failed, START, *EPOCHS, END]
    ends = []
    for record in records:
        Journal(results.journal_file(PLAN.run_id)).write(record)
        ends.append(results.end_of(PLAN.run_id))
    assert ends == [None, None, failed, *[None] * (1 + len(EPOCHS)), END]
