"""A worker group is started again where its workers died, and the driver does without torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

from raysuite.cluster import ray_shortcuts
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.controller import (
    FailureRecorder,
    NodeKeeper,
    StoppedError,
)
from raysuite.orchestrate.groups import RUNS, make_trainer
from raysuite.orchestrate.leaving_nodes import NodesGoneError
from raysuite.orchestrate.trainer import Workers
from raysuite.plan import make_plans
from raysuite.records import Journal, Results, RunFailed
from raysuite.spec import parse_document

SPEC = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 64}\n"
DIED = WorkerGroupError("died", {0: RuntimeError("The actor died.")})


class WorkerGroupStartupTimeoutError(Exception):
    """Named as Ray Train's own, which is not public."""


SLOW = ControllerError(WorkerGroupStartupTimeoutError("no resources"))


def workers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[Exception | None],
    waits: list[Exception | bool],
) -> Workers:
    """Workers whose groups end one after the other in those ways."""
    made = make_trainer(make_plans(parse_document(SPEC, "x.yaml"), gpus=0), tmp_path)

    def wait(keeper: NodeKeeper) -> bool:
        found = waits.pop(0) if waits else True
        if isinstance(found, Exception):
            raise found
        return found

    def attempt(work: object, settings: dict[str, Any], poll: object) -> Exception | None:
        assert settings["train_loop_config"]["work"] == RUNS
        error = ends.pop(0)
        if error is not None and not isinstance(error, TrainingFailedError):
            raise error
        return error

    monkeypatch.setattr(NodeKeeper, "wait", wait)
    monkeypatch.setattr(ray_shortcuts, "fit_in_driver", attempt)
    return made


@pytest.mark.parametrize(
    ("ends", "waits"),
    [
        ([None], []),
        ([DIED, None], []),
        ([SLOW, DIED, SLOW, None], []),
        ([*[SLOW] * 10, None], []),
        ([*[DIED] * 11, None], []),
        ([DIED], [True, False]),
    ],
)
def test_workers_are_started_until_their_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[Any], waits: list[Any]
) -> None:
    died = [each.worker_failures for each in ends if each is DIED]
    known: list[object] = []
    monkeypatch.setattr(FailureRecorder, "after_exception", lambda _, found: known.append(found))
    workers(tmp_path, monkeypatch, ends, waits).fit()
    assert (ends, known) == ([], died)


@pytest.mark.parametrize(
    ("ends", "waits"),
    [
        ([SLOW] * 11, []),
        ([*[SLOW] * 5, DIED, *[SLOW] * 6], []),
        ([ControllerError(ValueError("no such placement"))], []),
        ([StoppedError("too late")], []),
        ([TrainingFailedError("neither of a worker nor of the controller")], []),
        ([DIED], [True, NodesGoneError("no node came back")]),
    ],
)
def test_what_ends_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[Any], waits: list[Any]
) -> None:
    last = [*ends, *waits][-1]
    with pytest.raises(type(last)) as raised:
        workers(tmp_path, monkeypatch, ends, waits).fit()
    assert raised.value is last
    assert not ends


def test_other_runs_are_followed_with_their_own_deadline_and_new_workers_get_new_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SPEC + "repeats: 2\n"
    first, second = make_plans(parse_document(text, "x.yaml"), gpus=0)
    jobs, given = itertools.count(), list[int]()
    made = make_trainer([first], tmp_path, deadline=5.0, more=lambda: {"first": next(jobs)})

    def attempt(work: object, settings: dict[str, Any], poll: object) -> Exception | None:
        given.append(settings["train_loop_config"]["first"])
        if len(given) < 3:
            return DIED
        failed = RunFailed(run_id=second.run_id, reason="error", message="stands for an end")
        Journal(Results(tmp_path).journal_file(second.run_id)).write(failed)
        return DIED

    monkeypatch.setattr(Capacity, "now", lambda: Capacity((Node(1, 0),)))
    monkeypatch.setattr(ray_shortcuts, "fit_in_driver", attempt)
    made.follow([second], 1e12)
    made.fit()
    assert given == [0, 1, 2]
    assert made._keeper._deadline == 1e12
    assert Results(tmp_path).end_of(first.run_id) is None


def test_workers_that_are_halted_call_ray_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[int] = []
    monkeypatch.setattr(NodeKeeper, "check", lambda keeper: checks.append(1))
    halted = workers(tmp_path, monkeypatch, [], [])
    halted._poll()
    halted._halted.set()
    polling = threading.Thread(target=halted._poll, daemon=True)
    polling.start()
    halted.halt()  # returns once the thread rests
    polling.join(0.05)
    assert (polling.is_alive(), len(checks)) == (True, 1)


def test_the_driver_does_without_torch() -> None:
    """It takes seconds to import."""
    names = ("suite", "stopping", "trainer", "controller", "groups", "ray_cluster")
    lines = [f"import raysuite.orchestrate.{name}" for name in names]
    ask = "; ".join(["import sys, raysuite.cli.driver", *lines, "print('torch' in sys.modules)"])
    assert subprocess.check_output([sys.executable, "-c", ask], text=True) == "False\n"
