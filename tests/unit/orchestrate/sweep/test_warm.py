"""Workers that trials have one after the other: which run they take, and when they are let go."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from raysuite.orchestrate.rendezvous import verified
from raysuite.orchestrate.sweep import trial
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import parse_document

SPEC = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 64}\n"


def plans(text: str) -> list[RunPlan]:
    return make_plans(parse_document(SPEC + text, "x.yaml"), gpus=0)


class Trainer:
    """In the place of Ray Train's: one rank, in a thread, that does each job when it is let."""

    def __init__(self, settings: Callable[[], dict[str, Any]]) -> None:
        self._settings = settings
        self.followed: list[tuple[str, float | None]] = []
        self.jobs: list[Any] = []
        self.let = threading.Event()
        self.dies = False

    def follow(self, runs: list[RunPlan], deadline: float | None) -> None:
        self.followed.append((runs[0].run_id, deadline))

    def fit(self) -> None:
        while True:
            given = self._settings()
            store = TCPStore(*given["jobs"], timeout=timedelta(seconds=60))
            for number in count(given["first"]):
                text = json.loads(store.get(f"job/{number}"))
                job = verified(number, text, given["secret"])
                if job is None:
                    return
                self.jobs.append(job)
                self.let.wait(60)
                if self.dies:  # once: new workers are started
                    self.dies = False
                    break
                self.let.clear()
                store.set(f"done/{number}", "true")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    found: list[Trainer] = []

    def make(runs: Any, results: Path, work: str, more: Callable[[], dict[str, Any]]) -> Trainer:
        found.append(Trainer(more))
        return found[-1]

    monkeypatch.setattr(trial, "make_trainer", make)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    return found


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_trials_alike_follow_each_other_and_others_are_refused(
    made: list[Trainer], tmp_path: Path
) -> None:
    first, second = plans("matrix: {seed: [0, 1]}\n")
    (other,) = plans("strategy: ddp\nresources: {workers: 2}\n")
    workers = trial.WarmWorkers(first, tmp_path)
    assert workers.start(first, None, 5.0)
    assert workers.busy()
    made[0].let.set()
    until(lambda: not workers.busy())
    assert not workers.start(other, None, None)
    assert workers.start(second, None, None)
    until(lambda: len(made[0].jobs) == 2)
    assert workers.busy()
    made[0].let.set()
    until(lambda: not workers.busy())
    assert made[0].followed == [(first.run_id, 5.0), (second.run_id, None)]
    workers.end()
    assert not workers.start(second, None, None)
    assert workers.error is None


def test_workers_that_are_started_again_get_the_same_job(
    made: list[Trainer], tmp_path: Path
) -> None:
    first, second = plans("matrix: {seed: [0, 1]}\n")
    workers = trial.WarmWorkers(first, tmp_path)
    workers.start(first, None, None)
    made[0].let.set()
    until(lambda: not workers.busy())
    workers.start(second, None, None)
    until(lambda: len(made[0].jobs) == 2)
    made[0].dies = True
    made[0].let.set()
    until(lambda: not workers.busy())
    assert len(made[0].jobs) == 3
    assert made[0].jobs[0] != made[0].jobs[1] == made[0].jobs[2]
    workers.end()


def test_workers_without_a_trial_make_room(
    made: list[Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_IDLE_S", 0.1)
    (plan,) = plans("")
    workers = trial.WarmWorkers(plan, tmp_path)
    workers.start(plan, None, None)
    made[0].let.set()
    until(lambda: not workers.busy())
    until(lambda: not workers._thread.is_alive())
    assert not workers.start(plan, None, None)
