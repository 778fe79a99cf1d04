"""What is made of the exceptions of a group's workers."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ray.exceptions import OutOfMemoryError
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from raysuite.errors import StorageError, how_to_write, is_full
from raysuite.orchestrate import controller
from raysuite.orchestrate.controller import BrokenRunError, FailureRecorder
from raysuite.orchestrate.failures import record_lost, storage_error
from raysuite.orchestrate.leaving_nodes import NodesGoneError
from raysuite.plan import RunPlan
from raysuite.records import Journal, Results, RunFailed, RunFinished
from raysuite.train.world import is_peer_loss
from tests.fake_results import write_results

OWN = BrokenRunError("ValueError: the sun went down", "Traceback ...", peer_lost=False)
PEER = BrokenRunError("RuntimeError: [gloo/pair.cc:1] closed", "Traceback ...", peer_lost=True)
DEAD = RuntimeError("A worker health check failed.\nThe actor died. Look into its logs.")


class HorovodInternalError(RuntimeError):
    """Named as Horovod's own, which is not installed everywhere."""


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return write_results(tmp_path, missing=range(12))


class Nodes:
    """Nodes that are alive, or dead once one has the patience to hear of it."""

    def __init__(self) -> None:
        self.dead: list[str] = []
        self.known_at_once = True

    def lost(self, patient: bool) -> list[str]:
        return self.dead if patient or self.known_at_once else []


@pytest.fixture
def recorder(results: Results) -> FailureRecorder:
    plans = [RunPlan.model_validate(plan) for plan in results.plans()[:2]]
    assert plans[0].spec.resources.retries == 2
    return FailureRecorder(plans, results.folder, Nodes())


def end(results: Results, place: int) -> RunFailed | RunFinished | None:
    return results.end_of(results.plans()[place]["run_id"])


@pytest.mark.parametrize("raised", [{1: OWN}, {0: PEER, 1: OWN}, {1: OWN, 2: OWN}])
def test_a_rank_that_raises_is_the_error(recorder, results, raised):
    recorder.after_exception(raised)
    failed = end(results, 0)
    assert isinstance(failed, RunFailed)
    assert (failed.reason, failed.message) == ("error", "rank 1: ValueError: the sun went down")
    assert failed.detail == "Traceback ..."
    assert len(results.records(failed.run_id)) == 1
    assert end(results, 1) is None


def test_a_full_disk_is_no_end_of_a_run(recorder, results):
    full = BrokenRunError(
        "OSError: [Errno 28] No space left", "Traceback ...", False, disk_full=True
    )
    with pytest.raises(StorageError, match="rank 1: OSError") as raised:
        recorder.after_exception({0: OWN, 1: pickle.loads(pickle.dumps(full))})
    assert end(results, 0) is None
    assert storage_error(raised.value) is raised.value
    full_folder = OSError(errno.ENOSPC, "No space left")
    assert storage_error(ControllerError(full_folder)) is full_folder
    assert storage_error(ControllerError(RuntimeError("something else"))) is None


@pytest.mark.parametrize("numbers", [10, 100_000])
def test_torchs_errors_on_a_full_disk_are_known(numbers):
    with pytest.raises(RuntimeError) as raised:
        torch.save(torch.zeros(numbers), "/dev/full")
    assert is_full(raised.value)
    assert not is_full(RuntimeError("something else"))


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_a_disk_that_cannot_be_written_is_known_beneath_other_errors(link):
    """Raised `from` the disk's error, or while that error was handled."""
    for number, remedy in [
        (errno.ENOSPC, "free disk space"),
        (errno.EDQUOT, "free disk space"),
        (errno.EROFS, "mount the file system for writing"),
    ]:
        top, between = RuntimeError("not saved"), KeyError("epoch")
        setattr(top, link, between)
        setattr(between, link, OSError(number, os.strerror(number)))
        assert is_full(top)
        assert how_to_write(top) == remedy
    setattr(between, link, OSError(errno.EIO, "Input/output error"))
    assert not is_full(top)


FULL = BrokenRunError("RuntimeError: can't allocate memory", "Traceback ...", False, True)
ENDED_BY_RAY = RuntimeError("ray.exceptions.OutOfMemoryError: the node was running low on memory")


@pytest.mark.parametrize("raised", [{1: FULL}, {0: PEER, 1: FULL}, {0: PEER, 1: ENDED_BY_RAY}])
def test_a_rank_without_memory_is_not_tried_again(recorder, results, raised):
    recorder.after_exception(raised)
    failed = end(results, 0)
    assert isinstance(failed, RunFailed)
    assert failed.reason == "out_of_memory"
    assert failed.message.startswith("rank 1: ")


KILLED = "the kernel killed {} process(es) for lack of memory; "


def test_workers_without_memory_to_start_are_no_lost_workers(results):
    plan = RunPlan.model_validate(results.plans()[0])
    failure = RuntimeError("At least one of the worker actors failed to initialize.")
    failure.__cause__ = OutOfMemoryError("the node running low on memory. Look into its logs.")
    record_lost(plan, results, ControllerError(failure))
    failed = end(results, 0)
    assert isinstance(failed, RunFailed)
    assert failed.reason == "out_of_memory"
    assert "low on memory" in failed.detail
    other = RunPlan.model_validate(results.plans()[1])
    record_lost(other, results, ControllerError(RuntimeError("something else")))
    lost = end(results, 1)
    assert isinstance(lost, RunFailed)
    assert lost.reason == "lost"
    last = RunPlan.model_validate(results.plans()[2])
    record_lost(last, results, WorkerGroupError("died", {0: DEAD, 1: failure}))
    assert getattr(end(results, 2), "reason", None) == "out_of_memory"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            None,
            ("lost", "its workers ended without a result", "its workers ended without a result"),
        ),
        (RuntimeError("first\nlast\n"), ("lost", "last", "first\nlast")),
        (RuntimeError(), ("lost", "RuntimeError", "")),
        (NodesGoneError("host-b\nis gone"), ("node_lost", "host-b\nis gone", "host-b\nis gone")),
    ],
    ids=repr,
)
def test_a_lost_run_has_the_last_line_of_the_error_and_the_whole_of_it(results, error, expected):
    record_lost(RunPlan.model_validate(results.plans()[1]), results, error)
    failed = end(results, 1)
    assert isinstance(failed, RunFailed)
    assert (failed.reason, failed.message, failed.detail) == expected


@pytest.mark.parametrize(
    ("counts", "raised", "reason", "message"),
    [
        ([2, 3], {0: PEER, 1: DEAD}, "out_of_memory", f"{KILLED.format(1)}rank 1: The actor died"),
        ([2, 4], {0: PEER}, "out_of_memory", f"{KILLED.format(2)}rank 0: {PEER.message}"),
        ([2, 2], {1: DEAD}, None, None),
        ([None, None], {1: DEAD}, None, None),
        ([None, 3], {1: DEAD}, None, None),
        ([2, None], {1: DEAD}, None, None),
        ([2, 3], {0: PEER, 1: OWN}, "error", f"rank 1: {OWN.message}"),
    ],
)
def test_a_worker_that_the_kernel_killed_had_no_memory(
    results, monkeypatch, counts, raised, reason, message
):
    monkeypatch.setattr(controller, "kernel_kills", iter(counts).__next__)
    plans = [RunPlan.model_validate(plan) for plan in results.plans()[:1]]
    FailureRecorder(plans, results.folder, Nodes()).after_exception(raised)
    failed = end(results, 0)
    assert getattr(failed, "reason", None) == reason
    assert getattr(failed, "message", None) == message


def test_a_kernels_kill_is_of_one_loss_alone(results, monkeypatch):
    monkeypatch.setattr(controller, "kernel_kills", iter([2, 3, 3]).__next__)
    plans = [RunPlan.model_validate(plan) for plan in results.plans()]
    recorder = FailureRecorder(plans, results.folder, Nodes())
    recorder.after_exception({0: PEER, 1: DEAD})
    assert end(results, 0).reason == "out_of_memory"
    recorder.after_exception({0: PEER, 1: DEAD})
    assert end(results, 1) is None, "it is tried again"


@pytest.mark.parametrize(
    ("raised", "last"),
    [
        ({0: PEER, 1: DEAD}, "rank 1: The actor died"),
        ({0: OWN, 1: DEAD}, "rank 1: The actor died"),
        ({0: DEAD}, "rank 0: The actor died"),
        ({0: PEER}, "rank 0: RuntimeError: [gloo/pair.cc:1] closed"),
    ],
)
def test_a_death_is_tried_again_until_it_happens_too_often(recorder, results, raised, last):
    for _ in range(2):
        recorder.after_exception(raised)
        assert end(results, 0) is None
    recorder.after_exception(raised)
    failed = end(results, 0)
    assert isinstance(failed, RunFailed)
    assert failed.reason == "lost"
    assert failed.message == f"its workers died in each of 3 attempts; {last}"
    recorder.after_exception(raised)
    assert end(results, 1) is None, "the next run has attempts of its own"


@pytest.mark.parametrize(
    ("raised", "at_once", "reason"),
    [
        ({0: PEER, 1: DEAD}, True, "node_lost"),
        ({0: PEER}, True, "node_lost"),
        ({0: PEER}, False, "node_lost"),  # Ray does not know yet what became of the other rank
        ({0: PEER, 1: DEAD}, False, "lost"),  # it does: the process died alone
    ],
)
def test_a_node_that_went_with_the_workers_is_told(recorder, results, raised, at_once, reason):
    recorder._nodes.dead, recorder._nodes.known_at_once = ["n2"], at_once
    for _ in range(3):
        recorder.after_exception(raised)
    failed = end(results, 0)
    assert isinstance(failed, RunFailed)
    assert failed.reason == reason
    node = "its workers died in each of 3 attempts; in the last attempt, Ray also lost node n2"
    assert (failed.message == node) == (reason == "node_lost")


def test_it_is_the_first_run_without_an_end(recorder, results):
    first, second, *_ = (plan["run_id"] for plan in results.plans())
    Journal(results.journal_file(first)).write(
        RunFailed(run_id=first, reason="gate", message="the ranks disagree")
    )
    recorder.after_exception({0: OWN})
    assert [record.run_id for record in results.records(second)] == [second]
    recorder.after_exception({0: OWN})
    assert len(results.records(second)) == 1


def raised_from(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[/src/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/buffer.cc:72] Timed out"), True),
        (dist.DistBackendError("NCCL error: remote process exited"), True),
        (dist.DistNetworkError("failed to recv, got 0 bytes"), True),
        (HorovodInternalError("Connection reset by peer"), True),
        (raised_from(HorovodInternalError("shut down"), RuntimeError("shut down")), True),
        (RuntimeError("the skip connection has another shape than its peer"), False),
        (RuntimeError("[my note] gloo/ is a folder"), False),
        (ConnectionError("no route to the data"), False),
        # what is raised while all is being closed is not what it began with
        (raised_from(dist.DistNetworkError("closed"), ValueError("own")), False),
        (raised_from(KeyError("closing"), dist.DistBackendError("lost")), True),
    ],
)
def test_a_failed_collective_is_no_error_of_this_rank(error, expected):
    assert is_peer_loss(error) is expected


def test_failures_are_of_the_runs_that_are_followed_and_of_none_that_has_ended(recorder, results):
    first, second, third = (RunPlan.model_validate(plan) for plan in results.plans()[:3])
    alone = third.spec.resources.model_copy(update={"retries": 0})
    spec = third.spec.model_copy(update={"resources": alone})
    recorder.follow([third.model_copy(update={"spec": spec})])
    recorder.after_exception({0: PEER, 1: DEAD})
    failed = end(results, 2)
    assert isinstance(failed, RunFailed)
    assert failed.message == "its workers died in its only attempt; rank 1: The actor died"
    recorder.after_exception({0: OWN})
    assert [len(results.records(plan.run_id)) for plan in (first, second, third)] == [0, 0, 1]
