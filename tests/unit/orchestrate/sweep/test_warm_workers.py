"""Workers that trials have one after the other: which run they take, and when they are let go."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from raysuite.orchestrate.mailbox import Mailbox
from raysuite.orchestrate.sweep import trial
from raysuite.plan import RunPlan, make_plans
from raysuite.records import Results
from raysuite.spec import parse_document

SPEC = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 64}\n"


def plans(text: str) -> list[RunPlan]:
    return make_plans(parse_document(SPEC + text, "x.yaml"), gpus=0)


class Trainer:
    """In the place of Ray Train's: one rank, in a thread, that reports an epoch of each job."""

    def __init__(self, settings: Callable[[], dict[str, Any]]) -> None:
        self._settings = settings
        self.followed: list[tuple[str, float | None]] = []
        self.jobs: list[Any] = []
        self.dies = 0
        """How often new workers are started in a job."""
        self.fails = False

    def follow(self, runs: list[RunPlan], deadline: float | None) -> None:
        self.followed.append((runs[0].run_id, deadline))

    def fit(self) -> None:
        while True:
            given = self._settings()
            mailbox = Mailbox.at(*given["mailbox"])
            for number in count(given["first"]):
                job = mailbox.get(f"job/{number}")
                if job is None:
                    return
                self.jobs.append(job)
                keys = (f"report/{number}/{place}" for place in count())
                free = (key for key in keys if not mailbox.has(key))
                mailbox.put(next(free), f"epoch of {job['plans'][0]['run_id']}")
                if self.fails:
                    raise RuntimeError
                if self.dies:
                    self.dies -= 1
                    break
                mailbox.put(next(free), None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    found: list[Trainer] = []

    def make(runs: Any, results: Path, work: str, more: Callable[[], dict[str, Any]]) -> Trainer:
        found.append(Trainer(more))
        return found[-1]

    monkeypatch.setattr(trial, "make_trainer", make)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    return found


def epochs(workers: trial.WarmWorkers) -> list[str]:
    return [line for line in workers.epochs() if line is not None]


def test_trials_alike_follow_each_other_and_others_are_refused(
    made: list[Trainer], tmp_path: Path
) -> None:
    first, second = plans("matrix: {seed: [0, 1]}\n")
    (other,) = plans("strategy: ddp\nresources: {workers: 2}\n")
    workers = trial.WarmWorkers(first, tmp_path)
    assert workers.start(first, None, 5.0)
    assert epochs(workers) == [f"epoch of {first.run_id}"]
    assert not workers.start(other, None, None)
    assert workers.start(second, None, None)
    workers._end_after(0)  # the first job's workers were idle for long
    assert epochs(workers) == [f"epoch of {second.run_id}"]
    assert workers.start(first, None, 7.0)
    assert epochs(workers) == [f"epoch of {first.run_id}"]
    followed = [(first.run_id, 5.0), (second.run_id, None), (first.run_id, 7.0)]
    assert made[0].followed == followed
    workers.end()
    assert not workers.start(second, None, None)
    assert workers.error is None


def test_workers_that_are_started_again_get_the_same_job_and_report_after_the_lost_ones(
    made: list[Trainer], tmp_path: Path
) -> None:
    first, second = plans("matrix: {seed: [0, 1]}\n")
    workers = trial.WarmWorkers(first, tmp_path)
    workers.start(first, None, None)
    epochs(workers)
    made[0].dies = 2
    workers.start(second, None, None)
    assert epochs(workers) == [f"epoch of {second.run_id}"] * 3
    assert len(made[0].jobs) == 4
    assert made[0].jobs[0] != made[0].jobs[1] == made[0].jobs[2] == made[0].jobs[3]
    workers.end()


def test_a_trial_ends_with_its_workers_and_after_their_last_epoch(
    made: list[Trainer], tmp_path: Path
) -> None:
    (plan,) = plans("")
    workers = trial.WarmWorkers(plan, tmp_path)
    made[0].fails = True
    workers.start(plan, None, None)
    assert epochs(workers) == [f"epoch of {plan.run_id}"]
    assert isinstance(workers.error, RuntimeError)
    assert not workers.start(plan, None, None)


def test_idle_workers_end(
    made: list[Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_IDLE_S", 0.1)
    (plan,) = plans("")
    workers = trial.WarmWorkers(plan, tmp_path)
    workers.start(plan, None, None)
    epochs(workers)
    workers._thread.join(60)
    assert not workers._thread.is_alive()
    assert not workers.start(plan, None, None)


def test_trials_share_workers_while_they_can_and_others_get_new_ones_after_their_end(
    made: list[Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_workers", None)
    first, second = plans("matrix: {seed: [0, 1]}\n")
    (other,) = plans("strategy: ddp\nresources: {workers: 2}\n")
    results, used = Results(tmp_path), list[trial.WarmWorkers]()
    for plan in (first, second, other):
        used.append(trial._start(plan, results, None, None))
        assert epochs(used[-1]) == [f"epoch of {plan.run_id}"]
    assert used[0] is used[1] is not used[2]
    assert [each._thread.is_alive() for each in used] == [False, False, True]
    assert len(made) == 2
    trial._release()
    assert not used[2]._thread.is_alive()
    trial._release()


def test_idle_workers_end_before_tune_ends_their_process(
    made: list[Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_workers", None)
    monkeypatch.setattr("ray.tune.trainable.FunctionTrainable.cleanup", lambda self: None)
    (plan,) = plans("")
    workers = trial._start(plan, Results(tmp_path), None, None)
    epochs(workers)
    made_by_tune = trial.trainable(trial.Setting(results=str(tmp_path), path="."))
    made_by_tune.cleanup(object.__new__(made_by_tune))
    assert not workers._thread.is_alive()
    assert trial._workers is None
