"""Workers, drivers and patience that end in the middle: what is done stays, the rest goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from raysuite.cluster import ray_shortcuts, worker_fork
from raysuite.orchestrate.stopping import requested_stop
from raysuite.records import (
    EpochFinished,
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from raysuite.track import sync
from tests.integration.workplace import Command, Workplace, has_checkpoint, name_of, until_ended
from tests.json_lines import assert_json
from tests.marks import SLOW_MARKS
from tests.require import require
from tests.waiting import until

pytestmark = [*SLOW_MARKS, pytest.mark.timeout(900)]

KILLED = """\
name: killed
model: own:Holding
data: digits
training: {epochs: 5, global_batch: 240}
resources: {device: cpu, workers: 2, retries: 1}
matrix:
  strategy: [ddp, horovod]
  seed: [0, 1]
"""
STOPPED = """\
name: stopped
model: own:Holding
data: digits
strategy: ddp
training: {epochs: 5, global_batch: 240}
resources: {device: cpu, workers: 1}
matrix: {seed: [0, 1, 2]}
"""
EPOCHS = 5
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Where a driver was killed they try for a minute to tell it that Ray has died."""


def run_ids(results: Results) -> list[str]:
    return [plan["run_id"] for plan in results.plans()]


def starts(records: list[Record]) -> list[int]:
    """The first epoch of each attempt."""
    return [record.first_epoch for record in records if isinstance(record, RunStarted)]


def epochs(records: list[Record]) -> list[int]:
    return [record.epoch for record in records if record.kind == "epoch_finished"]


def train_losses(records: list[Record]) -> list[float]:
    return [record.train_loss for record in records if isinstance(record, EpochFinished)]


@pytest.fixture(scope="session")
def left_behind() -> Iterator[set[psutil.Process]]:
    """The agents of drivers that were killed; they have ended when all tests have."""
    found: set[psutil.Process] = set()
    yield found
    until_ended(found, 180)


@pytest.fixture(scope="module")
def driverless(workplace: Workplace, left_behind: set[psutil.Process]) -> tuple[Results, bytes]:
    """Three runs, whose driver was killed in the second; and the journal of the first."""
    workplace.write("stopped.yaml", STOPPED)
    for seed in (1, 2):
        workplace.write(f"hold-torch-{seed}", "")
    workplace.temporary.chmod(0o1777)  # as /tmp is
    command = workplace.start("raysuite", "run", "stopped.yaml")
    workplace.held(command)
    assert listening_beyond_loopback(command) == []
    if ray_shortcuts.enabled():
        assert parents_of_workers(command) == {worker_fork.__file__}
    if os.geteuid() == 0:
        assert open_to_another(workplace.temporary) == []
    results = workplace.results()
    until(lambda: has_checkpoint(results, run_ids(results)[1]))
    family = command.family()
    assert len(family) > 3
    left_behind |= {process for process in family if name_of(process) in AGENTS}
    command.process.kill()
    command.wait()
    until_ended(family - left_behind, 180)
    assert list(workplace.temporary.glob("rs-*")), "what the killed driver left"
    return results, results.journal_file(run_ids(results)[0]).read_bytes()


def parents_of_workers(command: Command) -> set[str]:
    """The program of the process that started Ray Train's workers."""
    workers = [each for each in command.family() if each.cmdline()[0].startswith("ray::RayTrain")]
    assert workers
    return {parent.cmdline()[1] for each in workers if (parent := each.parent())}


def listening_beyond_loopback(command: Command) -> list[str]:
    """Where this command and all that came of it can be reached from other machines."""
    found = []
    for process in command.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in process.net_connections("inet"):
                local = each.status == psutil.CONN_LISTEN and each.laddr.ip
                if local and local.removeprefix("::ffff:") not in ("127.0.0.1", "::1"):
                    found.append(f"{process.name()} {local}:{each.laddr.port}")
    return found


def open_to_another(*folders: Path) -> list[str]:
    """What a second user can read, write, enter or replace below `folders`, and in /dev/shm."""
    mine = ["-mindepth", "1", "-user", str(os.geteuid())]
    for_others = ["(", "-readable", "-o", "-writable", "-o", "-executable", ")"]
    # it ends badly where it may not enter: that is what is asked
    find = ["find", *map(str, folders), "/dev/shm", *mine, "!", "-type", "l", *for_others]
    found = subprocess.run(find, user="nobody", capture_output=True, text=True, check=False)
    libraries = [str(path) for folder in folders for path in folder.rglob("bind-*.so")]
    assert libraries, "the run has a library that every process of it preloads"
    replace = ["rm", "--interactive=never", *libraries]
    tried = subprocess.run(replace, user="nobody", capture_output=True, check=False)
    gone = [path for path in libraries if not Path(path).exists()]
    assert tried.returncode != 0, gone
    return found.stdout.splitlines() + gone


def test_a_second_user_finds_every_door_closed(driverless):
    require("root")  # the fixture has looked


def test_a_killed_driver_is_resumed_and_sigterm_leaves_a_checkpoint(driverless, workplace):
    before, journal = driverless
    (workplace.folder / "hold-torch-1").unlink()
    command = workplace.start("raysuite", "run", "stopped.yaml", "--resume")
    workplace.held(command)  # in the third
    family = command.family()
    os.killpg(command.process.pid, signal.SIGTERM)
    assert_stops(command, family, workplace, "hold-torch-2")
    assert "Traceback" not in command.stderr

    results = workplace.results()
    assert results.folder == before.folder
    first, second, third = (results.records(run_id) for run_id in run_ids(results))
    assert results.journal_file(run_ids(results)[0]).read_bytes() == journal
    assert starts(first) == [0]
    assert len(starts(second)) == 2
    assert starts(second)[-1] > 0
    assert epochs(second)[-(EPOCHS - starts(second)[-1]) :] == list(
        range(starts(second)[-1], EPOCHS)
    )
    assert starts(third) == [0]
    assert isinstance(third[-1], RunStopped)
    assert has_checkpoint(results, run_ids(results)[2])
    ends = [results.end_of(run_id) for run_id in run_ids(results)]
    assert [type(end) for end in ends] == [RunFinished, RunFinished, type(None)]

    assert sync(results, f"sqlite:///{workplace.folder}/mlflow.db").ok
    assert workplace.query("select count(*) from runs where status = 'FINISHED'") == [(2,)]
    steps = "select count(*) from (select distinct run_uuid, step from metrics where key = {})"
    key = "'step/loss'"
    total = workplace.query(f"select count(*) from metrics where key = {key}")
    assert total == workplace.query(steps.format(key))


def assert_stops(
    command: Command, family: set[psutil.Process], workplace: Workplace, hold: str
) -> None:
    """A command that was told to end ends with 75, and nothing is left of it."""
    # the workers would finish before the driver has seen the signal
    until(lambda: requested_stop(workplace.results().folder) is not None)
    (workplace.folder / hold).unlink()
    assert command.wait(120) == 75, command.stderr
    until_ended(family, 60)  # a killed process frees its memory before it is gone
    assert list(workplace.temporary.glob("rs-*")) == []


@pytest.mark.thorough
def test_ctrl_c_ends_at_once_and_keeps_what_there_is(workplace):
    workplace.write("ctrl-c.yaml", STOPPED.replace("stopped", "ctrl-c"))
    workplace.write("hold-torch-1", "")
    command = workplace.start("raysuite", "run", "ctrl-c.yaml", "--no-mlflow")
    workplace.held(command)  # in the second
    family = command.family()
    command.process.send_signal(signal.SIGINT)
    assert command.wait(120) == 130, command.stderr
    until_ended(family, 180)
    (workplace.folder / "hold-torch-1").unlink()
    results = workplace.results()
    assert f"--resume-from {results.folder}" in command.stderr
    assert "Traceback" not in command.stderr
    assert list(workplace.temporary.glob("rs-*")) == []
    ends = [results.end_of(run_id) for run_id in run_ids(results)]
    assert [type(end) for end in ends] == [RunFinished, type(None), type(None)]


@pytest.mark.thorough
def test_a_run_whose_terminal_is_closed_is_resumed_to_what_it_would_have_been(
    driverless, workplace
):
    undisturbed, _ = driverless
    workplace.write("closed.yaml", STOPPED.replace("stopped", "closed").replace("[0, 1, 2]", "[0]"))
    workplace.write("hold-torch-0", "")
    words = ("raysuite", "run", "closed.yaml", "--no-mlflow")
    command = workplace.start(*words, terminal=True)
    workplace.held(command)
    family = command.family()
    os.close(command.terminal)
    assert_stops(command, family, workplace, "hold-torch-0")
    workplace.run(*words, "--resume")
    results = workplace.results()
    [run_id] = run_ids(results)
    records = results.records(run_id)
    assert starts(records)[-1] > 0
    assert epochs(records) == list(range(EPOCHS))
    expected = undisturbed.records(run_ids(undisturbed)[0])
    assert train_losses(records) == train_losses(expected)


@pytest.fixture(scope="module")
def killed(workplace: Workplace) -> tuple[Command, Results]:
    """Four runs: a worker of the first and of the third is killed, of the second it is twice."""
    require("horovod")
    workplace.write("killed.yaml", KILLED)
    for name in ("torch-0", "torch-1", "horovod-0"):
        workplace.write(f"hold-{name}", "")
    command = workplace.start("raysuite", "run", "killed.yaml", "--json", "--no-mlflow")
    for place, release in [(0, "torch-0"), (1, ""), (1, "torch-1"), (2, "horovod-0")]:
        worker = workplace.held(command)
        assert listening_beyond_loopback(command) == []
        assert worker in command.family()
        results = workplace.results()
        # the controller hears of a checkpoint a moment after it was written
        until(lambda: has_checkpoint(results, run_ids(results)[place]))  # noqa: B023
        worker.kill()
        if release:
            (workplace.folder / f"hold-{release}").unlink()
    assert command.wait() == 1
    return command, workplace.results()


@pytest.mark.thorough
@pytest.mark.parametrize("place", [pytest.param(0, id="torch"), pytest.param(2, id="horovod")])
def test_a_run_goes_on_from_its_last_checkpoint(killed, place):
    _, results = killed
    records = results.records(run_ids(results)[place])
    assert isinstance(records[-1], RunFinished)
    first, again = starts(records)
    assert first == 0
    assert again > 0
    done = epochs(records)
    assert done[-(EPOCHS - again) :] == list(range(again, EPOCHS))
    assert sorted(set(done)) == list(range(EPOCHS))
    assert not any(isinstance(record, RunFailed) for record in records)


@pytest.mark.thorough
def test_a_run_whose_workers_die_too_often_is_lost(killed):
    _, results = killed
    records = results.records(run_ids(results)[1])
    assert len(starts(records)) == 2
    failed = [record for record in records if isinstance(record, RunFailed)]
    assert failed == records[-1:]
    assert failed[0].reason == "lost"
    assert failed[0].message.startswith("its workers died in each of 2 attempts; rank 1: ")


@pytest.mark.thorough
def test_the_others_go_on(killed):
    _, results = killed
    records = results.records(run_ids(results)[3])
    assert starts(records) == [0]
    assert epochs(records) == list(range(EPOCHS))
    assert isinstance(records[-1], RunFinished)
    rows = json.loads((results.folder / "rows.json").read_text("utf-8"))["rows"]
    assert sum(row["runs"] for row in rows) == 4


@pytest.mark.thorough
def test_json_is_a_record_a_line(killed):
    command, results = killed
    assert_json(command.stdout.splitlines())
    first, *printed, last = [json.loads(line) for line in command.stdout.splitlines()]
    assert (first["kind"], last["kind"]) == ("results", "summary")
    written = [
        json.loads(r.model_dump_json()) for i in run_ids(results) for r in results.records(i)
    ]
    assert printed == written
    assert command.stderr == ""


PIPELINE = """\
name: {name}
model: resnet20
data: {{name: digits, image_size: 16}}
strategy: {{name: pipeline, schedule: {schedule}, stages: 2}}
training: {{epochs: 5, global_batch: 48}}
resources: {{device: cpu, workers: 2, retries: 1}}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_a_pipeline_whose_stage_is_killed_is_resumed(workplace: Workplace, schedule: str) -> None:
    """While the other stage waits for it in a send or a receive."""
    name = f"stage-{schedule}"
    workplace.write(f"{name}.yaml", PIPELINE.format(name=name, schedule=schedule))
    command = workplace.start("raysuite", "run", f"{name}.yaml", "--no-mlflow")
    folder = workplace.folder / "results" / name
    until(lambda: any(folder.glob("*/plan.json")))
    results = Results.open(folder)
    until(lambda: bool(run_ids(results)) and has_checkpoint(results, run_ids(results)[0]), 400)
    workers = [p for p in command.family() if "RayTrainWorker" in " ".join(p.cmdline())]
    assert len(workers) == 2
    workers[-1].kill()
    assert command.wait(400) == 0, command.stderr
    records = results.records(run_ids(results)[0])
    first, again = starts(records)
    assert first == 0
    assert again > 0
    assert sorted(set(epochs(records))) == list(range(EPOCHS))
    assert isinstance(records[-1], RunFinished)
