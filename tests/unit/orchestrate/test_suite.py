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
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

from raysuite.errors import StorageError, UserError
from raysuite.orchestrate import budget, suite
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.groups import checkpoint_folder
from raysuite.orchestrate.leaving_nodes import NodesGoneError
from raysuite.orchestrate.stopping import request_stop, requested_stop
from raysuite.orchestrate.suite import Listener, fit, reset_failures
from raysuite.plan import RunPlan, make_plans
from raysuite.records import Journal, Results, RunFailed, RunPruned
from raysuite.records.node_checks import NodeFigures, read_checks
from raysuite.spec import parse_document
from raysuite.train.checkpoint import LoopState, latest_checkpoint, write_sizes
from raysuite.train.stop_together import Stop

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
    pruned = RunPruned(run_id=STOPPED.run_id, by="asha", epoch=0, value=None)
    Journal(results.journal_file(STOPPED.run_id)).write(pruned)
    reset_failures([FAILED, STOPPED], results)
    assert results.end_of(STOPPED.run_id) == pruned, "no failure"
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


GONE, STOP = NodesGoneError("host-b is gone"), Stop("preempted")


class Three:
    """A suite of three runs, each with workers of its own, whose ends a test chooses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = SPEC.replace("repeats: 2", "repeats: 3\nmeasure: {profile: torch}")
        self.plans = make_plans(parse_document(text, "x.yaml"), gpus=0)
        self.results = Results(folder)
        self.results.write_plans([plan.model_dump(mode="json") for plan in self.plans])
        self.ends: list[tuple[Exception | None, Stop | None, bool]] = []
        """Of each group: its error, the stop, and whether its run has ended."""
        self.asked: list[tuple[int, float | None]] = []
        """The index of each run that began, and how long it waits for nodes."""
        self.heads: list[int] = []
        self.cpus = iter(())
        monkeypatch.setattr(Capacity, "now", lambda: Capacity((Node(next(self.cpus, 2), 0),)))
        monkeypatch.setattr(suite, "make_trainer", lambda group, _, patience: (group, patience))
        monkeypatch.setattr(suite, "fit", self.fit)
        monkeypatch.setattr(suite, "check_head", lambda: self.heads.append(len(self.asked)))

    def fit(self, work: Any, *_: object) -> tuple[Exception | None, Stop | None]:
        assert requested_stop(self.results.folder) is None
        (plan,), patience = work
        self.asked.append((plan.index, patience))
        error, stop, ends = self.ends.pop(0)
        if ends:
            self.end(plan)
        return error, stop

    def end(self, plan: RunPlan) -> None:
        end = RunPruned(run_id=plan.run_id, by="asha", epoch=0, value=None)
        Journal(self.results.journal_file(plan.run_id)).write(end)

    def run(self, stop: Callable[[], Stop | None] = lambda: None) -> Stop | None:
        request_stop(self.results.folder, STOP)  # of an earlier command
        return suite.run(self.plans, self.results, 1, Listener(stop))

    def reasons(self) -> list[str | None]:
        ends = (self.results.end_of(plan.run_id) for plan in self.plans)
        return [getattr(end, "reason", "") if end else None for end in ends]


@pytest.mark.parametrize(
    ("ends", "stopped", "begun"),
    [
        ([(None, STOP, True)], True, 1),
        ([(None, None, True)] * 2 + [(None, STOP, True)], False, 3),
        ([(None, None, True)] * 2 + [(None, STOP, False)], True, 3),
        ([(GONE, STOP, False)], True, 1),
    ],
)
def test_a_stop_ends_a_suite_and_is_returned_if_a_run_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[Any], stopped: bool, begun: int
) -> None:
    three = Three(tmp_path, monkeypatch)
    three.ends = list(ends)
    assert three.run() == (STOP if stopped else None)
    assert len(three.asked) == begun
    assert three.reasons() == [*("" if end[2] else None for end in ends), None, None][:3]


def test_no_group_begins_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three = Three(tmp_path, monkeypatch)
    three.ends = [(None, None, True)]
    assert three.run(lambda: STOP if three.asked else None) == STOP
    assert (three.asked, three.reasons()) == ([(0, None)], ["", None, None])


def test_runs_that_have_ended_or_that_a_budget_left_out_do_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = Three(tmp_path, monkeypatch)
    three.end(three.plans[0])
    (tmp_path / budget.DECLINED).write_text(f"{three.plans[2].run_id}\n")
    three.ends = [(None, None, True)]
    assert three.run() is None
    assert (three.asked, three.reasons()) == ([(1, None)], ["", "", None])


def test_a_full_disk_ends_a_suite_without_ends_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = Three(tmp_path, monkeypatch)
    three.ends = [(StorageError("no space"), None, False)]
    with pytest.raises(StorageError, match="no space"):
        three.run()
    assert (three.reasons(), three.heads) == ([None] * 3, [])


def test_a_lost_group_is_recorded_if_the_head_answers_and_the_next_group_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is not asked where all runs ended, or where nodes were lost."""
    three = Three(tmp_path, monkeypatch)
    three.ends = [(ValueError("a\nb"), None, False), (ValueError("c"), None, True)]
    three.ends += [(GONE, None, False)]
    assert three.run() is None
    assert (three.heads, three.reasons()) == ([1], ["lost", "", "node_lost"])
    lost = three.results.end_of(three.plans[0].run_id)
    assert getattr(lost, "message", "") == "b"


@pytest.mark.parametrize(
    ("errors", "cpus", "waits"),
    [
        ([GONE, GONE, None], [], [None, 0.0, 0.0]),
        ([GONE, None, None], [], [None, 0.0, None]),
        ([GONE, GONE, None], [2, 4, 2, 2], [None, None, 0.0]),
        ([ValueError(), None, None], [], [None, None, None]),
    ],
    ids=["none returned", "all is well", "another returned", "not of nodes"],
)
def test_nodes_that_did_not_return_are_not_waited_for_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[Exception | None],
    cpus: list[int],
    waits: list[float | None],
) -> None:
    three = Three(tmp_path, monkeypatch)
    three.ends = [(error, None, error is None) for error in errors]
    three.cpus = iter(cpus)
    assert three.run() is None
    assert three.asked == list(enumerate(waits))


@pytest.mark.parametrize(
    ("nodes", "on_ray", "known", "measured"),
    [(3, True, False, 1), (2, True, False, 0), (3, False, False, 0), (3, True, True, 0)],
)
def test_the_nodes_of_a_cluster_are_measured_once_from_three_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    on_ray: bool,
    known: bool,
    measured: int,
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(suite, "_measure_nodes", lambda folder, listener: made.append(folder))
    if known:
        (tmp_path / suite.NODES).touch()
    suite.run([], Results(tmp_path), nodes, Listener(lambda: None), on_ray)
    assert made == [tmp_path] * measured


def test_slow_nodes_are_reported_and_a_lost_node_ends_no_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        NodeFigures(host=host, when=0.0, figures={"disk": rate}, all_reduce_s=0.1, transports=[])
        for host, rate in (("a", 900.0), ("b", 90.0), ("c", 900.0))
    ]
    answers, said = iter([RayError("lost"), rows]), list[str]()

    def check_nodes(folder: Path, patience_s: float) -> list[NodeFigures]:
        answer = next(answers)
        if isinstance(answer, RayError):
            raise answer
        assert folder == tmp_path
        return answer

    monkeypatch.setattr("raysuite.orchestrate.node_check.check_nodes", check_nodes)
    listener = Listener(lambda: None, say=said.append)
    suite._measure_nodes(tmp_path, listener)
    assert (said, read_checks(tmp_path / suite.NODES)) == (
        ["the nodes were not measured: RayError"],
        [],
    )
    suite._measure_nodes(tmp_path, listener)
    assert read_checks(tmp_path / suite.NODES) == rows
    assert [line.partition(":")[0] for line in said[1:]] == ["b is slow"]


def test_a_suite_to_resume_is_the_newest_or_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        suite.latest("a", tmp_path)
    document = parse_document(SPEC, "x.yaml")
    made = suite.create(document, [FAILED, STOPPED], tmp_path)
    assert made.folder.parent == tmp_path / "a"
    assert (made.folder / "spec.yaml").read_text() == SPEC
    assert suite.planned(suite.latest("a", tmp_path)) == [FAILED, STOPPED]


@pytest.mark.parametrize("error", [None, ValueError("boom"), SystemExit(1)], ids=repr)
def test_the_first_stop_reaches_the_workers_and_their_error_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    monkeypatch.setattr(suite, "_POLL_SECONDS", 0.001)
    stops, polls = iter([None, Stop("preempted", 1e12)]), list[int]()

    class Stops:
        def fit(self) -> None:
            while requested_stop(tmp_path) is None:
                time.sleep(0.001)
            if error is not None:
                raise error

    asked = Listener(lambda: next(stops, Stop("interrupted")), poll=lambda: polls.append(1))
    left: list[int] = []
    found, stop = fit(Stops(), Results(tmp_path), asked, lambda: left.append(1))
    assert found == (error if isinstance(error, Exception) else None)
    assert stop == requested_stop(tmp_path) == Stop("preempted", 1e12)
    assert (len(left), len(polls) > 1) == (1, True)


def test_workers_that_do_not_stop_in_time_are_left_and_their_thread_is_halted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(suite, "_ENDING_S", 0.01)
    said, halted = list[str](), threading.Event()
    work = SimpleNamespace(fit=lambda: halted.wait(60), halt=halted.set)
    late = Stop("time_limit", time.time() - 1)
    assert fit(work, Results(tmp_path), Listener(lambda: late, say=said.append)) == (None, late)
    message = "the workers did not stop in time: runs are resumed from their last checkpoint"
    assert said == [message]
    assert halted.is_set()


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
