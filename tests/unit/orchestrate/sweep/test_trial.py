"""A trial's request reaches its workers, and its epochs the scheduler: all in one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import TCPStore

from raysuite.errors import RunError, StorageError
from raysuite.orchestrate import found_batches, rendezvous, stopping, worker
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.controller import DeadlineError
from raysuite.orchestrate.groups import work_config
from raysuite.orchestrate.sweep import trial, trial_source
from raysuite.orchestrate.sweep.schedulers import ORDER, JournaledScheduler
from raysuite.orchestrate.sweep.trial_source import TrialSource
from raysuite.plan import RunPlan
from raysuite.plan.batch_candidates import NothingFitsError, outcome
from raysuite.plan.trials import trial_plan
from raysuite.records import (
    BatchTried,
    EpochFinished,
    Journal,
    Results,
    RunFailed,
    RunFinished,
    RunStopped,
)
from raysuite.spec import Document
from raysuite.spec.search_check import read_search
from raysuite.train.stop_together import Stop
from tests.fake_results import run_records

DATA: dict[str, Any] = {
    "name": "unit",
    "data": {"name": "digits"},
    "model": {"name": "tests.tiny_model:Tiny"},
    "training": {"epochs": 2, "global_batch": 720},
    "measure": {"power": False},
    "resources": {"device": "cpu"},
    "search": {
        "space": {"optimizer.lr": {"grid": [0.1, 0.2]}},
        "searcher": "grid",
        "scheduler": {"name": "median", "grace_epochs": 2},
        "deadline_s": 600,
    },
}


class OneWorker:
    """In the place of Ray Train's workers: rank 0 of one, in this process."""

    def __init__(self, config: Callable[[], dict[str, Any]]) -> None:
        self._config = config

    def follow(self, plans: list[RunPlan], deadline: float | None) -> None:
        assert deadline is not None

    def fit(self) -> None:
        worker.serve(self._config())


@pytest.fixture
def _in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(plans: Any, results: Path, work: str, more: Callable[[], dict[str, Any]]) -> OneWorker:
        return OneWorker(lambda: work_config(plans, results) | more())

    context = SimpleNamespace(
        get_world_rank=lambda: 0,
        get_local_rank=lambda: 0,
        get_local_world_size=lambda: 1,
        get_node_rank=lambda: 0,
    )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(rendezvous, "_store", store)
    monkeypatch.setattr(trial, "make_trainer", make)
    monkeypatch.setattr(trial, "_workers", None)
    monkeypatch.setattr(trial_source.Capacity, "now", lambda: Capacity((Node(1.0, 0.0),)))
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(Path.cwd())
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # a worker sets them


@pytest.mark.usefixtures("_in_process")
def test_requests_reach_the_workers_and_epochs_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, results = Document(DATA, "sweep.yaml"), Results(tmp_path)
    search = read_search(document)
    results.write_plans([])
    stopping.request_stop(tmp_path, None)
    scheduler = JournaledScheduler(search, results, 2)
    capacity = Capacity((Node(1.0, 0.0),))
    source = TrialSource(document, search, results, capacity, scheduler, lambda event: None)
    reports: list[dict[str, str]] = []

    def report(result: dict[str, str]) -> None:
        reports.append(result)
        scheduler.on_trial_result(None, None, result)

    monkeypatch.setattr("ray.tune.report", report)
    setting = trial.Setting(str(tmp_path), str(tmp_path), {"OF_DRIVER": "1"})
    monkeypatch.setenv("OF_DRIVER", "")
    for name in ("a", "b"):
        request = source.suggest(name)
        assert source.suggest("beside") is None
        trial.run_trial(request, setting)
        source.on_trial_complete(name)
    trial._release()
    assert (Path.cwd(), sys.path[0], os.environ["OF_DRIVER"]) == (tmp_path, str(tmp_path), "1")
    assert source.suggest("c") == "FINISHED"
    runs = [plan["run_id"] for plan in results.plans()]
    assert [type(results.end_of(run_id)) for run_id in runs] == [RunFinished] * 2
    epochs = [each for run_id in runs for each in trial.epochs_of(results, run_id)]
    assert [list(each) for each in reports] == [["epoch"]] * 4
    order = (tmp_path / ORDER).read_text().splitlines()
    assert order == [f'["{each.run_id}", {each.epoch}, {each.time!r}]' for each in epochs]


def trial_of(**training: Any) -> RunPlan:
    data = {**DATA, "training": {**DATA["training"], **training}}
    return trial_plan(Document(data, "sweep.yaml"), {"optimizer.lr": 0.1}, 0, gpus=0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeadlineError("late"), "deadline"),
        (NothingFitsError("not even 1"), "out_of_memory"),
        (RunError("no such layer"), "error"),
        (None, ""),
        ("stop", None),
    ],
    ids=repr,
)
def test_a_trial_has_the_batch_that_was_found_or_the_reason_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, reason: str | None
) -> None:
    plan, results = trial_of(accumulate="auto"), Results(tmp_path)
    tried = [BatchTried(stage="alone", micro_batch=720, fits=True)]
    made, record = outcome(plan, [*tried, tried[0].model_copy(update={"stage": "together"})], 3.0)

    def decide(given: Any, folder: Path, nodes: int, listener: Any, deadline: float | None) -> Any:
        assert (given, folder, deadline) == ([plan], tmp_path / "batches", 1e12)
        if isinstance(error, RunError):
            raise error
        if error == "stop":
            return found_batches.Decision([plan], stop=Stop("preempted"))
        return found_batches.Decision([made], {made.run_id: record})

    monkeypatch.setattr(found_batches, "decide", decide)
    assert trial.find_batch(plan, results, 1e12) == (made if error is None else None)
    assert results.records(made.run_id) == ([record] if error is None else [])
    failed = results.end_of(plan.run_id)
    assert getattr(failed, "reason", None) == (reason or None)


def test_a_trial_reports_its_batch_before_its_epochs_and_has_what_is_left_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, made = trial_of(accumulate="auto"), trial_of()
    reports, ends = list[Any](), list[float | None]()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("ray.tune.report", reports.append)
    monkeypatch.setattr(trial, "time", SimpleNamespace(time=lambda: 1000.0))
    found = iter([made, None])

    def find_batch(given: RunPlan, results: Results, deadline: float | None) -> RunPlan | None:
        ends.append(deadline)
        return next(found)

    def epochs(given: RunPlan, results: Results, deadline: float | None, part: object) -> list[str]:
        ends.append(deadline)
        return [f"epoch of {given.run_id}"]

    monkeypatch.setattr(trial, "find_batch", find_batch)
    monkeypatch.setattr(trial, "_epochs", epochs)
    setting = trial.Setting(str(tmp_path), str(tmp_path))
    for each, left_s in ((plan, 5.0), (plan, 5.0), (made, None)):
        request = trial.Request(plan=each, left_s=left_s)
        trial.run_trial({"request": trial.as_text(request)}, setting)
    epoch = {"epoch": f"epoch of {made.run_id}"}
    assert reports == [{"plan": trial.as_text(made)}, epoch, epoch]
    assert ends == [1005.0, 1005.0, 1005.0, None]


@pytest.mark.parametrize(
    ("error", "before", "reason"),
    [
        (None, "", "lost"),
        (RuntimeError("died"), "", "lost"),
        (DeadlineError("late"), "", "deadline"),
        (StorageError("full"), "", None),
        (None, "stop", None),
        (DeadlineError("late"), "stop", "deadline"),
        (RuntimeError("died"), "held", None),
        (RuntimeError("died"), "ended", "gate"),
    ],
)
def test_a_trial_without_an_end_has_the_end_that_its_workers_had(
    tmp_path: Path, error: Exception | None, before: str, reason: str | None
) -> None:
    """Unless it was stopped, waits for the others of its population, or the disk was full."""
    plan, results = trial_of(), Results(tmp_path)
    journal = Journal(results.journal_file(plan.run_id))
    epochs = [each for each in run_records(plan) if isinstance(each, EpochFinished)]
    for each in (*epochs, epochs[0]):  # the first was repeated
        journal.write(each)
    if before == "stop":
        stopping.request_stop(tmp_path, Stop("preempted"))
    elif before == "held":
        journal.write(RunStopped(run_id=plan.run_id, reason="interval", epoch=1, step=9))
    elif before == "ended":
        journal.write(RunFailed(run_id=plan.run_id, reason="gate", message="differs"))
    trial._settle(plan, results, error)
    end = results.end_of(plan.run_id)
    assert getattr(end, "reason", None) == reason
    assert ("; 2 epoch(s) were finished" in getattr(end, "message", "")) == (reason == "deadline")


@pytest.mark.parametrize(("late_s", "ended"), [(29.0, False), (31.0, True)])
def test_a_trial_whose_workers_do_not_end_at_its_deadline_is_recorded_and_ends_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_s: float, ended: bool
) -> None:
    plan, results = trial_of(), Results(tmp_path)
    workers = SimpleNamespace(epochs=lambda: iter([None, "line"]), error=None)

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(trial, "_start", lambda *_: workers)
    monkeypatch.setattr(trial, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr("os._exit", leave)
    lines = trial._epochs(plan, results, 1000.0 - late_s, None)
    if ended:
        with pytest.raises(SystemExit):
            next(lines)
        assert getattr(results.end_of(plan.run_id), "reason", "") == "deadline"
    else:
        assert next(lines) == "line"
        assert results.end_of(plan.run_id) is None
