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

from raysuite.orchestrate import rendezvous, stopping, worker
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.groups import work_config
from raysuite.orchestrate.sweep import trial, trial_source
from raysuite.orchestrate.sweep.schedulers import ORDER, JournaledScheduler
from raysuite.orchestrate.sweep.trial_source import TrialSource
from raysuite.plan import RunPlan
from raysuite.records import Results, RunFinished
from raysuite.spec import Document
from raysuite.spec.search_check import read_search

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
