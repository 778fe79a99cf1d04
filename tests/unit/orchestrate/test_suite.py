"""What stays of runs that failed when they are made again, and of Ray's thread after Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from raysuite.orchestrate import suite
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.groups import checkpoint_folder
from raysuite.orchestrate.leaving_nodes import NodesGoneError
from raysuite.orchestrate.suite import Listener, fit, reset_failures
from raysuite.plan import RunPlan, make_plans
from raysuite.records import Journal, Results, RunFailed
from raysuite.spec import parse_document
from raysuite.train.checkpoint import LoopState, latest_checkpoint, write_sizes

SPEC = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 9, global_batch: 64}\nrepeats: 2"
FAILED, STOPPED = make_plans(parse_document(SPEC, "x.yaml"), gpus=0)


def keep_checkpoint(results: Results, plan: RunPlan) -> Path:
    folder = checkpoint_folder(results, plan.run_id)
    folder.mkdir(parents=True)
    state = LoopState(
        run_id=plan.run_id, epoch=8, step=80, elapsed_seconds=1.0, time_to_accuracy=None
    )
    state.write(folder)
    write_sizes(folder)
    return folder


def failed(tmp_path: Path) -> Results:
    results = Results(tmp_path)
    failure = RunFailed(run_id=FAILED.run_id, reason="error", message="boom")
    Journal(results.journal_file(FAILED.run_id)).write(failure)
    return results


def test_a_run_that_is_made_again_has_no_checkpoint_and_others_keep_theirs(tmp_path: Path) -> None:
    results = failed(tmp_path)
    own, other = (keep_checkpoint(results, plan) for plan in (FAILED, STOPPED))
    reset_failures([FAILED, STOPPED], results)
    assert not own.exists()
    assert latest_checkpoint(other, STOPPED.run_id, 8) == (other, "")
    assert results.records(FAILED.run_id) == []


def test_each_failed_attempt_keeps_a_journal_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of one second, and of a clock that was set back."""
    times = iter([1_000_000_000.2, 1_000_000_000.7, 999_999_999.0, 999_999_999.0])
    monkeypatch.setattr(time, "time", lambda: next(times))
    for _ in range(4):
        reset_failures([FAILED], failed(tmp_path))
    kept = sorted(Results(tmp_path).journal_file(FAILED.run_id).parent.glob("journal.failed-*"))
    assert len(kept) == 4
    assert all("boom" in file.read_text("utf-8") for file in kept)


def test_each_smaller_run_of_groups_that_lost_a_node_has_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SPEC + "\nstrategy: ddp\nresources: {workers: 4, elastic: true}"
    text += "\nmatrix: {measure.profile: [torch, 'off']}"  # a profiled run shares no workers
    plans = make_plans(parse_document(text, "x.yaml"), gpus=0)
    results = Results(tmp_path)
    results.write_plans([plan.model_dump(mode="json") for plan in plans])
    two = Capacity((Node(2, 0),))
    monkeypatch.setattr(Capacity, "now", lambda: two)
    monkeypatch.setattr(suite, "ScriptRuns", lambda group, results: group)
    made: list[list[int]] = []

    def fit(group: list[RunPlan], *_: object) -> tuple[Exception | None, None]:
        made.append([plan.index for plan in group])
        if len(made) <= 3:
            return NodesGoneError("host-b is gone"), None
        for plan in group:
            end = RunFailed(run_id=plan.run_id, reason="error", message="boom")
            Journal(results.journal_file(plan.run_id)).write(end)
        return None, None

    monkeypatch.setattr(suite, "fit", fit)
    added: list[RunPlan] = []
    listener = Listener(lambda: None, added=added.append)
    assert suite.run(plans, results, 1, listener, on_ray=False) is None
    assert made == [[0], [1, 2], [3], [4], [5, 6], [7]]
    assert [plan.index for plan in added] == [4, 5, 6, 7]
    assert [plan.repeat for plan in added] == [0, 0, 1, 1]
    assert [plan["index"] for plan in results.plans()] == [0, 1, 2, 3, 4, 5, 6, 7]
    reasons = [getattr(results.end_of(plan.run_id), "reason", "") for plan in plans]
    assert reasons == ["node_lost"] * 4


class Reference:
    """In the place of Ray's reference to an object."""


class Work:
    """Waits for Ray, holding a reference, until Ray shuts down under it."""

    def __init__(self) -> None:
        self.ray_ends, self.is_over = threading.Event(), threading.Event()
        self.held: weakref.ref[Reference] | None = None

    def fit(self) -> None:
        reference = Reference()
        self.held = weakref.ref(reference)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert self.ray_ends.wait(60)
        self.is_over.set()
        raise SystemExit("Ray has been shut down")


def interrupted(work: Work, folder: Path, leave: Callable[[], None] | None = None) -> None:
    """Ctrl-C comes while the thread is waited for."""
    listener = Listener(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        fit(work, Results(folder), listener, leave)


def test_ctrl_c_leaves_a_thread_that_lets_go_of_nothing(tmp_path: Path) -> None:
    work = Work()
    interrupted(work, tmp_path)
    threads = [thread for thread in threading.enumerate() if thread.name == "ray-fit"]
    work.ray_ends.set()
    assert work.is_over.wait(60)
    for thread in threads:
        thread.join(60)
    gc.collect()
    assert work.held is not None
    assert work.held() is not None


def test_what_is_asked_to_leave_is_waited_for(tmp_path: Path) -> None:
    work = Work()
    interrupted(work, tmp_path, leave=threading.Timer(1.0, work.ray_ends.set).start)
    assert work.is_over.is_set()
