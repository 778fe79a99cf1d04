"""A run in several attempts: what counts, how it ended, and how that is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from raysuite.cli.progress import RunState, event
from raysuite.plan import make_plans
from raysuite.records import (
    FAILED,
    STOPPED,
    FailReason,
    Journal,
    Record,
    Results,
    RunFailed,
    RunStarted,
    RunStopped,
    StopReason,
    make_rows,
    results_figures,
    run_figures,
)
from raysuite.records.power import PowerUse, joined
from raysuite.report import build
from raysuite.spec import parse_document
from raysuite.track.entries import mlflow_status, run_tags
from tests.fake_results import ENVIRONMENT, TWELVE_ROWS, run_records, write_results
from tests.oracle import differences

PLAN = make_plans(parse_document(TWELVE_ROWS.replace("REPEATS", "1"), "spec.yaml"), gpus=0)[0]
DATA = PLAN.model_dump(mode="json")
WHOLE = run_records(PLAN)
STOP = RunStopped(run_id=PLAN.run_id, reason="preempted", epoch=3, step=70)
"""Of six epochs, three are behind it."""


def taken_up(epoch: int, step: int = 0) -> RunStarted:
    return RunStarted(
        run_id=PLAN.run_id, plan=DATA, environment=ENVIRONMENT, first_epoch=epoch, first_step=step
    )


@pytest.mark.parametrize("reason", sorted(set(get_args(StopReason)) - {"interval"}))
def test_a_stopped_run_is_neither_finished_nor_failed(tmp_path: Path, reason: StopReason) -> None:
    end = STOP.model_copy(update={"reason": reason})
    found = run_figures(DATA, [*WHOLE[:5], end])
    assert (found.status, found.end, found.stopped) == ("stopped", None, end)
    where = "in epoch 4, after step 70; it can be resumed"
    assert found.reason == f"{STOPPED[reason]}: {where}"
    assert mlflow_status(found) == "KILLED"
    assert run_tags(found, "x")["raysuite.status"] == "stopped"
    results = Results(tmp_path)
    journal = Journal(results.journal_file(PLAN.run_id))
    for record in (*WHOLE[:5], end):
        journal.write(record)
    assert results.records(PLAN.run_id)[-1] == end
    assert results.end_of(PLAN.run_id) is None


def test_what_was_stopped_and_finished_is_the_whole_run() -> None:
    """The epoch in which it stopped, and one that the checkpoint did not hold, count once."""
    again = [record.model_copy(update={"train_loss": 0.5}) for record in WHOLE[4:6]]
    records: list[Record] = [*WHOLE[:5], STOP, taken_up(2), WHOLE[1], *again, *WHOLE[6:]]
    found = run_figures(DATA, records)
    assert (found.status, found.attempts, found.stopped) == ("finished", 2, None)
    assert [epoch.epoch for epoch in found.epochs] == list(range(6))
    assert [epoch.train_loss for epoch in found.epochs[2:4]] == [0.5, 0.5]
    assert mlflow_status(found) == "FINISHED"
    assert run_tags(found, "x")["raysuite.attempts"] == "2"


def test_what_is_under_way_again_is_not_stopped() -> None:
    found = run_figures(DATA, [*WHOLE[:5], STOP, taken_up(3, 70)])
    assert (found.status, found.attempts) == ("missing", 2)
    assert mlflow_status(found) == "RUNNING"
    assert [epoch.epoch for epoch in found.epochs] == [0, 1, 2]
    assert len(run_figures(DATA, [*WHOLE[:5], taken_up(2)]).epochs) == 2


def test_the_last_word_counts() -> None:
    lost = RunFailed(run_id=PLAN.run_id, reason="node_lost", message="n2 went away")
    found = run_figures(DATA, [*WHOLE[:5], STOP, lost])
    assert (found.status, found.reason) == ("failed", "node_lost: n2 went away")


def test_every_reason_has_words() -> None:
    assert set(STOPPED) == set(get_args(StopReason))
    assert set(FAILED) == set(get_args(FailReason))


def test_progress_tells_it() -> None:
    state = RunState(PLAN)
    for record in (*WHOLE[:5], STOP):
        state.take(record)
    assert state.status == "stopped"
    assert state.images_to_go == 3 * PLAN.dataset.train_samples
    assert event(state, STOP) == (
        "stopped (preempted) in epoch 4, after step 70; it can be resumed"
    )
    midway = taken_up(3, 3 * PLAN.steps_per_epoch + 7)
    assert event(state, midway) == "resumed at epoch 4, after 7 of its steps"
    assert event(state, taken_up(3, 3 * PLAN.steps_per_epoch)) == "resumed at epoch 4"
    assert event(state, taken_up(0)) == "started"
    assert event(state, taken_up(0, 4)) == "resumed at epoch 1, after 4 of its steps"


def test_the_report_tells_it_and_equals_the_oracle(tmp_path: Path) -> None:
    results = write_results(tmp_path)
    first, second, third = results.plans()[:3]
    for plan in (first, second):
        journal = results.journal_file(plan["run_id"])
        journal.write_text("".join(journal.read_text("utf-8").splitlines(keepends=True)[:5]))
        Journal(journal).write(STOP.model_copy(update={"run_id": plan["run_id"]}))
    # one of several attempts: no measure of an epoch's time
    journal = results.journal_file(third["run_id"])
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    lines[3] |= {"attempts": 2, "seconds": 1000.0}
    lines[0]["environment"]["hostname"] = "another"
    lines[0]["plan"]["peak_lr"] = 7.0  # as of a trial that has taken another's values since
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    runs = results_figures(results)
    begun = [run.started for run in runs if run.started]
    shared = [run.plan is run.started.plan for run in runs if run.started]  # in memory once
    assert shared == [run.run_id != third["run_id"] for run in runs if run.started]
    assert begun[2].plan == {**third, "peak_lr": 7.0}
    hosts = [each.environment["hostname"] for each in begun[1:4]]
    assert hosts == ["made-up-host", "another", "made-up-host"]
    assert {id(each.environment["cpu"]) for each in begun} == {id(begun[0].environment["cpu"])}
    rows = make_rows(runs)
    assert [row.status for row in rows[:3]] == ["stopped", "stopped", "finished"]
    assert rows[0].throughput is None
    assert rows[2].epoch_seconds is not None
    assert rows[2].epoch_seconds.mean < 100
    build(results, pictures=False)
    said = (tmp_path / "report.html").read_text("utf-8")
    assert "stopped on request" in said
    assert differences(results) == []


class TestEnergy:
    def use(self, joules: float | None, host: str = "h") -> PowerUse:
        return PowerUse(
            devices=["d", "e"],
            device_joules=[joules, 2.0],
            device_busy=[0.5, None],
            hosts=[host, host],
            host_joules=[10.0, 10.0],
        )

    def test_it_adds_up_and_shares_are_weighted_by_time(self) -> None:
        later = self.use(4.0).model_copy(update={"device_busy": [1.0, 1.0]})
        found = joined([(self.use(1.0), 30.0), (later, 10.0)])
        assert found is not None
        assert found.device_joules == [5.0, 4.0]
        assert found.host_joules == [20.0, 20.0]
        assert found.device_busy == [pytest.approx(0.625), None]

    def test_a_part_that_is_unknown_leaves_the_whole_unknown(self) -> None:
        found = joined([(self.use(1.0), 1.0), (self.use(None), 1.0)])
        assert found is not None
        assert found.device_joules == [None, 4.0]
        assert joined([(self.use(1.0), 1.0), (None, 1.0)]) is None

    def test_other_hosts_are_not_added_up(self) -> None:
        assert joined([(self.use(1.0), 1.0), (self.use(1.0, "other"), 1.0)]) is None
        elsewhere = self.use(1.0).model_copy(update={"devices": ["d", "f"]})
        assert joined([(self.use(1.0), 1.0), (elsewhere, 1.0)]) is None
        assert joined([]) is None
        instant = joined([(self.use(1.0), 0.0)])
        assert instant is not None
        assert (instant.device_joules, instant.device_busy) == ([1.0, 2.0], [0.0, None])
