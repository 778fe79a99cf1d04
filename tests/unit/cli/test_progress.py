"""The progress display, driven by journals as a run would write them."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from rich.console import Console

from raysuite.cli.progress import Progress, Tail
from raysuite.plan import RunPlan, make_plans
from raysuite.records import (
    EpochFinished,
    Journal,
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunStopped,
    SamplesSkipped,
)
from raysuite.records.live import LivePosition, live_file
from raysuite.spec import parse_document
from raysuite.units import human_seconds
from tests.fake_results import epoch, run_records, verdict

SPEC = """\
name: a
model: resnet20
data: digits
training: {epochs: 3, global_batch: 64}
strategy: ddp
matrix: {loader: [native, dali]}
"""
FAILURE = RunFailed(run_id="", reason="error", message="ValueError: [red]no[/red] data")


class Stage:
    """Planned runs, their results folder and a console that is looked at."""

    def __init__(
        self,
        folder: Path,
        terminal: bool = False,
        quiet: bool = False,
        js: bool = False,
        spec: str = SPEC,
    ):
        self.plans = make_plans(parse_document(spec, "x"), gpus=0)
        self.results = Results(folder)
        self.now = 0.0
        self.screen = io.StringIO()
        console = Console(
            file=self.screen, force_terminal=terminal, width=70, color_system=None, markup=False
        )
        self.progress = Progress(self.plans, quiet, js, console, clock=lambda: self.now)

    def write(self, plan: RunPlan, *records: Record, when: float | None = None) -> None:
        journal = Journal(self.results.journal_file(plan.run_id))
        stamp = time.time() if when is None else when
        for record in records:
            journal.write(record.model_copy(update={"time": stamp, "run_id": plan.run_id}))

    def poll(self) -> str:
        """What is new on the screen."""
        before = len(self.screen.getvalue())
        self.progress.poll(self.results)
        return self.screen.getvalue()[before:]

    def view(self) -> str:
        """The live part as text."""
        console = Console(width=90, color_system=None, file=io.StringIO())
        with console.capture() as capture:
            console.print(self.progress.view())
        return capture.get()


def test_a_line_an_event_without_a_terminal(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first, second = stage.plans
    assert stage.poll() == ""
    stage.write(first, *run_records(first))
    stage.write(second, *run_records(second, FAILURE))
    lines = stage.poll().splitlines()
    one, two = "run 1 of 2  ddp · native · 1 worker  ", "run 2 of 2  ddp · dali · 1 worker  "
    assert lines[0] == one + "started"
    assert lines[1] == one + "gate passed: error 2.5e-07, tolerance 1e-05"
    assert lines[2].startswith(one + "finished: ")
    assert "images/s, accuracy 0.9" in lines[2]
    assert lines[3:5] == [two + "started", two + "gate passed: error 2.5e-07, tolerance 1e-05"]
    assert lines[5] == two + "failed: ValueError: [red]no[/red] data"
    assert len(lines) == 6
    assert "\x1b" not in stage.screen.getvalue()
    assert stage.poll() == ""


def test_long_epochs_are_worth_a_line(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    plan = stage.plans[0]
    short = epoch(plan, 0, accuracy=0.5)
    stage.write(plan, short, short.model_copy(update={"epoch": 1, "seconds": 31.0, "images": 310}))
    assert stage.poll().splitlines() == [
        "run 1 of 2  ddp · native · 1 worker  epoch 2 of 3: 10 images/s, accuracy 0.500"
    ]


def test_a_gate_that_failed_and_one_without_bound(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    plan = stage.plans[0]
    lossy = verdict(plan).model_copy(update={"tolerance": None, "cached": True})
    stage.write(plan, verdict(plan, passed=False), lossy)
    failed, unbound = stage.poll().splitlines()
    assert failed.endswith("gate failed: ranks disagree, error 4.0e-01, tolerance 1e-05")
    assert unbound.endswith("gate passed: error 2.5e-07, no tolerance, found earlier")


def test_quiet_tells_errors_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(tmp_path, quiet=True)
    first, second = stage.plans
    stage.write(first, *run_records(first))
    stage.write(second, *run_records(second, FAILURE))
    assert stage.poll() == ""
    assert capsys.readouterr().err == (
        "run 2 of 2  ddp · dali · 1 worker  failed: ValueError: [red]no[/red] data\n"
    )


def test_quiet_tells_stops_and_an_early_end_is_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = RunStopped(run_id="", reason="time_limit", epoch=1, step=30)
    for quiet in (True, False):
        stage = Stage(tmp_path / str(quiet), quiet=quiet)
        first, second = stage.plans
        *begun, end = run_records(first)
        assert isinstance(end, RunFinished)
        stage.write(first, *begun[:3], stop)
        stage.write(second, *begun, end.model_copy(update={"stopped_early": True}))
        said = stage.poll() + capsys.readouterr().err
        assert ("finished by early stopping: " in said) != quiet
        wanted = "run 1 of 2  ddp · native · 1 worker  stopped (time limit) in epoch 2"
        assert said.count(wanted) == 1
        assert stage.progress.totals() == "1 finished · 1 stopped"


def test_only_a_run_that_is_going_on_has_a_position(tmp_path: Path) -> None:
    """A file of an attempt that has ended may be left."""
    stage = Stage(tmp_path)
    plan = stage.plans[0]
    file = live_file(stage.results.journal_file(plan.run_id))
    stage.write(plan, *run_records(plan, FAILURE))
    epochs = stage.plans[0].spec.training.epochs // 2
    file.write_text(position(5, 320, epoch=epochs).model_dump_json())
    stage.poll()
    run = stage.progress.runs[0]
    assert (run.live, run.epoch_text, run.images_to_go) == (None, str(epochs), 0)
    assert run.images_done == epochs * plan.dataset.train_samples
    stage.write(plan, run_records(plan)[0].model_copy(update={"first_epoch": epochs}))
    stage.poll()
    assert (run.status, run.epoch_text) == ("running", f"{epochs + 5 / 23:.1f}")
    assert run.images_done == epochs * plan.dataset.train_samples + 320
    assert run.images_to_go == 3 * plan.dataset.train_samples - run.images_done


def test_json_is_the_records(tmp_path: Path) -> None:
    stage = Stage(tmp_path, js=True)
    plan = stage.plans[0]
    records = run_records(plan)
    stage.write(plan, *records, when=time.time() + 1)
    lines = stage.poll().splitlines()
    adapter: TypeAdapter[Record] = TypeAdapter(Record)
    assert [adapter.validate_json(line).kind for line in lines] == [r.kind for r in records]
    assert json.loads(lines[0])["run_id"] == plan.run_id


def test_what_lay_there_before_is_counted_and_not_announced(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first, second = stage.plans
    stage.write(first, *run_records(first), when=time.time() - 60)
    stage.write(second, *run_records(second, FAILURE), when=time.time() - 60)
    assert stage.poll() == ""
    assert stage.view().strip() == "1 finished · 1 failed"
    again = run_records(second)[0].model_copy(update={"first_epoch": 1})
    stage.write(second, again)
    assert stage.poll().splitlines() == ["run 2 of 2  ddp · dali · 1 worker  resumed at epoch 2"]
    assert "1 finished · 1 running" in stage.view()


def test_the_live_part(tmp_path: Path) -> None:
    stage = Stage(tmp_path, terminal=True)
    plan = stage.plans[0]
    with stage.progress.live():
        stage.poll()
        assert "starting workers" in stage.view()
        started, gate, first, *_ = run_records(plan)
        assert isinstance(first, EpochFinished)
        stage.write(plan, started, gate)
        stage.poll()
        stage.now = 10.0
        quick = {"images": 200, "seconds": 0.1, "validation_seconds": 0.0, "train_loss": 0.5}
        stage.write(plan, first.model_copy(update=quick))
        stage.poll()
        stage.now = 12.0
        lines = [line.strip() for line in stage.view().splitlines()]
    assert lines[0].endswith("run 1 of 2  ddp · native · 1 worker")
    assert lines[1].startswith("epoch 2 of 3")
    assert f"2,000 images/s  loss 0.500  accuracy {first.val_accuracy:.3f}" in lines[1]
    assert lines[2] == "gate passed: error 2.5e-07, tolerance 1e-05"
    # two epochs to go, and the next run takes as long as this one: 12 s so far, and these two
    of_run = 2 * plan.dataset.train_samples / 2000
    assert f"about {12 + 2 * of_run:.0f} s left" in lines[3]
    assert lines[3].startswith("1 running · 1 to go · ")
    assert "started" not in stage.screen.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_samples_that_are_left_out_are_told_where_there_are_any(
    tmp_path: Path, terminal: bool
) -> None:
    stage = Stage(tmp_path, terminal=terminal)
    plan = stage.plans[0]
    some = SamplesSkipped(
        run_id="", split="train", samples=1437, skipped=2, places=["a.jpg: cut"], known=0, seconds=1
    )
    with stage.progress.live():
        stage.poll()
        stage.write(plan, some, some.model_copy(update={"split": "val", "skipped": 0}))
        said = " ".join(stage.poll().split())
    assert "leaves out 2 of 1,437 train samples; the first: a.jpg: cut" in said
    assert "val" not in said


def test_time_left_goes_by_the_runs_that_ended_here(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.poll()
    stage.now = 20.0
    stage.write(stage.plans[0], *run_records(stage.plans[0]))
    stage.poll()
    stage.now = 30.0
    assert stage.progress.totals() == "1 finished · 1 to go · about 20 s left"
    stage.write(stage.plans[1], *run_records(stage.plans[1]))
    stage.poll()
    assert stage.progress.totals() == "2 finished"


def test_time_left_leaves_out_the_runs_that_had_ended_before(tmp_path: Path) -> None:
    stage = Stage(tmp_path, spec=SPEC.replace("[native, dali]", "[native, dali, memory]"))
    before, here, _ = stage.plans
    stage.write(before, *run_records(before), when=time.time() - 60)
    stage.poll()
    stage.now = 20.0
    stage.write(here, *run_records(here))
    stage.poll()
    assert stage.progress.totals() == "2 finished · 1 to go · about 20 s left"


def position(step: int, images: int, **changes: float | None) -> LivePosition:
    found: dict[str, Any] = {
        "time": 0, "epoch": 0, "step": step, "steps": 23, "images": images,
        "images_per_second": 100.0, "loss": 2.25,
    }  # fmt: skip
    return LivePosition.model_validate(found | changes)


def test_inside_of_an_epoch(tmp_path: Path) -> None:
    stage = Stage(tmp_path, terminal=True)
    plan = stage.plans[0]
    file = live_file(stage.results.journal_file(plan.run_id))
    with stage.progress.live():
        stage.poll()
        stage.write(plan, *run_records(plan)[:2])
        file.write_text(position(2, 128).model_dump_json())
        stage.now = 3.28
        stage.poll()
        lines = [line.strip() for line in stage.view().splitlines()]
        assert "epoch 1 of 3, step 2 of 23" in lines[1]
        assert "100 images/s  loss 2.250" in lines[1]
        whole = 3 * plan.dataset.train_samples
        of_run = (whole - 128) / 100
        of_all = 3.28 + 2 * of_run
        assert lines[-1].endswith(f"about {human_seconds(of_all)} left, {of_run:.0f} s in this run")
        file.write_text(position(23, 1437).model_dump_json())
        stage.poll()
        assert "epoch 1 of 3, validation" in stage.view()
        file.write_text(position(1, 64, epoch=7).model_dump_json())  # of an earlier attempt
        stage.poll()
        assert "step 1 of" not in stage.view()


def test_the_rate_of_the_time_left_counts_validation_too(tmp_path: Path) -> None:
    """Before an epoch has a rate of its own: 200 images in a second, and another for validation."""
    stage = Stage(tmp_path, terminal=True)
    plan = stage.plans[0]
    file = live_file(stage.results.journal_file(plan.run_id))
    started, gate, first, *_ = run_records(plan)
    stage.poll()
    stage.write(plan, started, gate)
    stage.poll()
    run = stage.progress.runs[0]
    assert run.rate is None
    taken = {"images": 200, "seconds": 1.0, "validation_seconds": 1.0}
    stage.write(plan, first.model_copy(update=taken))
    stage.poll()
    assert run.rate == 100
    assert "200 images/s" in stage.view()
    assert f"{run.images_to_go / 100:.0f} s in this run" in stage.view()
    for rate, shown in ((None, 100), (50.0, 50)):
        live = position(2, 128, epoch=1, images_per_second=rate)
        file.write_text(live.model_dump_json())
        stage.poll()
        assert run.rate == shown
    to_go = 2 * plan.dataset.train_samples - 128
    assert run.images_to_go == to_go
    assert f"{to_go / 50:.0f} s in this run" in stage.view()


def test_a_log_has_a_line_now_and_then_inside_of_long_epochs(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    plan = stage.plans[0]
    file = live_file(stage.results.journal_file(plan.run_id))
    stage.write(plan, *run_records(plan)[:2])
    file.write_text(position(2, 128).model_dump_json())
    assert len(stage.poll().splitlines()) == 2
    stage.now = 59.0
    assert stage.poll() == ""
    stage.now = 61.0
    assert stage.poll().endswith("epoch 1 of 3, step 2 of 23, 100 images/s, loss 2.250\n")
    stage.now = 62.0
    assert stage.poll() == ""


def test_after_the_last_run_no_workers_are_started(tmp_path: Path) -> None:
    stage = Stage(tmp_path, terminal=True)
    with stage.progress.live():
        stage.poll()
        for plan in stage.plans:
            stage.write(plan, *run_records(plan))
        stage.poll()
        assert "starting" not in stage.view()


def test_a_run_whose_plan_changed_takes_its_place_and_others_keep_their_state(
    tmp_path: Path,
) -> None:
    progress = Stage(tmp_path).progress
    first, second = progress.runs
    progress.add(first.plan)
    changed = second.plan.model_copy(update={"run_id": "found"})
    progress.add(changed)
    assert progress.runs[0] is first
    assert [run.plan for run in progress.runs] == [first.plan, changed]


def test_tail_reads_each_record_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    plan = make_plans(parse_document(SPEC, "x"), gpus=0)[0]
    file, tail = tmp_path / "journal.jsonl", Tail()
    lines = [record.model_dump_json().encode() + b"\n" for record in run_records(plan)]
    assert tail.new(file) == []
    file.write_bytes(lines[0] + lines[1][:50])
    assert [record.kind for record in tail.new(file)] == ["run_started"]
    assert tail.new(file) == []
    file.write_bytes(b"".join(lines[:3]) + b'{"kind": "epo\xff')
    assert [record.kind for record in tail.new(file)] == ["gate_verdict", "epoch_finished"]
    assert tail.new(file) == []
    file.write_bytes(b"".join(lines[:3]) + b'{"kind": "epo\xff\n' + lines[3])
    assert [record.kind for record in tail.new(file)] == ["run_failed"]
    file.write_bytes(b"".join(lines[:3] + lines[:3]))  # begun anew
    assert [record.epoch for record in tail.new(file) if record.kind == "epoch_finished"] == [0]


def test_a_run_that_starts_again_has_the_epochs_of_its_checkpoint(tmp_path: Path) -> None:
    stage = Stage(tmp_path, terminal=True)
    plan = stage.plans[0]
    with stage.progress.live():
        stage.write(plan, *run_records(plan)[:4])  # two epochs have ended
        stage.poll()
        assert "epoch 3 of 3" in stage.view()
        stage.write(plan, run_records(plan)[0].model_copy(update={"first_epoch": 1}))
        stage.poll()
        assert "epoch 2 of 3" in stage.view()
