"""Suites that a cluster's head goes on with, and the lock that keeps drivers apart."""

from __future__ import annotations

import errno
import json
import os
import resource
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.suites import (
    LOCK,
    Suite,
    _is_writable,
    has_driver,
    is_to_be_resumed,
    register,
    sole_driver,
    suites_to_resume,
    taken_up,
    unregister,
)
from raysuite.errors import HeadLostError, StorageError, UserError
from raysuite.records import Journal, Results, RunStarted, RunStopped, SamplesSkipped

HOLD = """\
import sys
from pathlib import Path
from raysuite.cluster.suites import sole_driver

with sole_driver(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
    if sys.argv[2:]:
        raise AttributeError("a mistake in the driver")
"""


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterFolder:
    return ClusterFolder(tmp_path / "clusters" / "one")


def made_results(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / "results $(x) 'y'" / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("[]")
    return folder


def holder(results: Path, fails: bool = False) -> subprocess.Popen[str]:
    """A driver of these results, which ends once its standard input does."""
    words = [sys.executable, "-c", HOLD, str(results), *(["fails"] if fails else [])]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_suite_is_gone_on_with_until_it_ends(tmp_path: Path, cluster: ClusterFolder) -> None:
    assert suites_to_resume(cluster) == []
    first, second = made_results(tmp_path, "first"), made_results(tmp_path, "second")
    register(cluster, Suite(results=second, folder=tmp_path, began=2.0))
    register(cluster, Suite(results=first, folder=tmp_path, arguments=("--no-mlflow",), began=1.0))
    register(cluster, Suite(results=second, folder=tmp_path, began=2.0))
    expected = [
        (("raysuite", "run", "--resume-from", str(first), "--no-mlflow"), tmp_path, first),
        (("raysuite", "run", "--resume-from", str(second)), tmp_path, second),
    ]
    found = suites_to_resume(cluster)
    assert [(suite.words, suite.folder, suite.results) for suite in found] == expected
    assert shlex.split(shlex.join(found[0].words))[3] == str(first)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in cluster.suites.iterdir()}
    assert modes == {0o600}
    unregister(cluster, first)
    assert [suite.results for suite in suites_to_resume(cluster)] == [second]
    unregister(cluster, first)
    (second / "plan.json").unlink()
    assert suites_to_resume(cluster) == []


def test_what_never_comes_further_is_forgotten(tmp_path: Path, cluster: ClusterFolder) -> None:
    names = ("grows", "stuck", "away", "skips", "same")
    grows, stuck, away, skips, same = (made_results(tmp_path, name) for name in names)
    at_two = RunStopped(run_id="1", reason="time_limit", epoch=0, step=2)
    Journal(Results(same).journal_file("1")).write(at_two)
    for results in (grows, stuck, away, skips, same):
        register(cluster, Suite(results=results, folder=tmp_path))
    (away / "plan.json").unlink()
    started = RunStarted(run_id="1", plan={}, environment={})
    skipped = SamplesSkipped(
        run_id="1", split="train", samples=9, skipped=1, places=["a"], known=0, seconds=0.1
    )
    for step in range(1, 4):
        resumes = suites_to_resume(cluster)
        assert {resume.results for resume in resumes} == {grows, stuck, skips, same}
        for resume in resumes:
            taken_up(cluster, resume.results)
            register(cluster, Suite(results=resume.results, folder=tmp_path))  # by its driver
            journal = Journal(Results(resume.results).journal_file("1"))
            journal.write(started)
            if resume.results == skips:
                journal.write(skipped)
            if resume.results == same:
                journal.write(at_two)
            if resume.results == grows:
                journal.write(at_two.model_copy(update={"step": step}))
    assert [resume.results for resume in suites_to_resume(cluster)] == [grows]
    assert len(list(cluster.suites.iterdir())) == 2, "nobody tried the one that is away"


def test_a_suite_that_progresses_between_failures_stays(
    tmp_path: Path, cluster: ClusterFolder
) -> None:
    results = made_results(tmp_path, "slow")
    journal = Journal(Results(results).journal_file("1"))
    register(cluster, Suite(results=results, folder=tmp_path))
    for step in range(1, 13):
        assert len(suites_to_resume(cluster)) == 1
        taken_up(cluster, results)
        if step % 2 == 0:
            stopped = RunStopped(run_id="1", reason="time_limit", epoch=0, step=step)
            journal.write(stopped)
    assert len(suites_to_resume(cluster)) == 1


def test_progress_of_earlier_attempts_does_not_count_again(
    tmp_path: Path, cluster: ClusterFolder
) -> None:
    results = made_results(tmp_path, "once")
    register(cluster, Suite(results=results, folder=tmp_path))
    stopped = RunStopped(run_id="1", reason="time_limit", epoch=0, step=1)
    Journal(Results(results).journal_file("1")).write(stopped)
    attempts = 0
    while suites_to_resume(cluster):
        taken_up(cluster, results)
        attempts += 1
        assert attempts < 9
    assert attempts == 3


def test_what_its_driver_says_meanwhile_stands(
    tmp_path: Path, cluster: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = made_results(tmp_path, "a")
    suite = Suite(results=results, folder=tmp_path)
    anew = suite.model_copy(update={"arguments": ("--no-mlflow",)})

    def taken_up_while(meanwhile: Callable[[], None]) -> list[Suite]:
        def slowly(_: Path) -> int:
            meanwhile()
            return 0

        register(cluster, suite)
        with monkeypatch.context() as patch:
            patch.setattr("raysuite.cluster.suites._reached", slowly)
            taken_up(cluster, results)
        return suites_to_resume(cluster)

    (resume,) = taken_up_while(lambda: register(cluster, anew))
    assert resume.words[-1] == "--no-mlflow"
    assert taken_up_while(lambda: unregister(cluster, results)) == []


def test_a_sweep_is_gone_on_with_by_its_own_verb(tmp_path: Path, cluster: ClusterFolder) -> None:
    results = made_results(tmp_path, "a")
    register(cluster, Suite(results=results, folder=tmp_path, verb="sweep"))
    (suite,) = suites_to_resume(cluster)
    assert suite.words == ("raysuite", "sweep", "--resume-from", str(results))


def test_what_cannot_be_read_is_left_out(tmp_path: Path, cluster: ClusterFolder) -> None:
    results = made_results(tmp_path, "a")
    register(cluster, Suite(results=results, folder=tmp_path))
    (cluster.suites / "half.json").write_text('{"results": "/x')
    (cluster.suites / "other.json").write_text("[]")
    assert len(suites_to_resume(cluster)) == 1


def test_one_driver_a_folder(tmp_path: Path, cluster: ClusterFolder) -> None:
    results = made_results(tmp_path, "a")
    register(cluster, Suite(results=results, folder=tmp_path))
    process = holder(results)
    try:
        assert suites_to_resume(cluster) == [], "its driver lives"
        with pytest.raises(UserError, match=f"by process {process.pid} on {os.uname().nodename}"):
            sole_driver(results).__enter__()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert len(suites_to_resume(cluster)) == 1
    with sole_driver(results):
        named = json.loads((results / LOCK).read_text("utf-8"))
        assert named["pid"] == os.getpid(), "in place of the killed one"
        assert suites_to_resume(cluster) == []
    with sole_driver(results):
        pass


@pytest.mark.parametrize(
    ("error", "becomes", "is_free"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageError, False),
        (
            RuntimeError("[enforce fail] PytorchStreamWriter failed writing file"),
            StorageError,
            False,
        ),
        (RuntimeError("[enforce fail at x.cc:671] . unexpected pos 4 vs 2"), StorageError, False),
        (StorageError("rank 0: OSError"), StorageError, False),
        (HeadLostError("gone"), HeadLostError, False),
        (OSError(errno.ENOENT, "no such file"), OSError, False),
        (UserError("a mistake"), UserError, True),
        (KeyboardInterrupt(), KeyboardInterrupt, True),
    ],
)
def test_what_becomes_of_a_driver_that_fails(
    tmp_path: Path, error: BaseException, becomes: type[BaseException], is_free: bool
) -> None:
    results = made_results(tmp_path, "a")
    with pytest.raises(becomes), sole_driver(results):
        raise error
    assert ((results / LOCK).read_text("utf-8") == "") == is_free
    assert is_to_be_resumed(error) == (not is_free)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "free disk space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/x"), "for writing"),
        (StorageError(f"rank 0: OSError: {os.strerror(errno.EROFS)}"), "for writing"),
    ],
)
def test_the_advice_fits_what_keeps_results_from_being_written(
    tmp_path: Path, error: Exception, advice: str
) -> None:
    results = made_results(tmp_path, "a")
    with pytest.raises(StorageError, match=advice) as raised, sole_driver(results):
        raise error
    assert ("disk space" in str(raised.value)) == (advice == "free disk space")


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    results = made_results(tmp_path, "a")
    (results / LOCK).mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        sole_driver(results).__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--results"):
        Results.create(tmp_path / "file")


def test_without_locks_the_holders_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = made_results(tmp_path, "a")
    process = holder(results)

    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("raysuite.cluster.suites.fcntl.flock", no_locks)
    try:
        with pytest.raises(UserError, match=f"by process {process.pid} "):
            sole_driver(results).__enter__()
    finally:
        process.kill()
        process.communicate()
    with sole_driver(results):
        pass


def test_a_folder_on_a_full_disk_is_not_writable(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    assert _is_writable(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        found = _is_writable(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not found
    assert not _is_writable(tmp_path / "removed")
    assert list(tmp_path.iterdir()) == []


def test_a_driver_on_another_host_may_live(tmp_path: Path, cluster: ClusterFolder) -> None:
    results = made_results(tmp_path, "a")
    register(cluster, Suite(results=results, folder=tmp_path))
    here = {"host": os.uname().nodename, "pid": 2**22 + 1, "birth": ""}
    for told, drives, is_resumed in (
        ("", False, False),  # it ended by itself
        (json.dumps({**here, "host": "elsewhere"}), True, False),
        (json.dumps(here), False, True),
        ("[]", False, False),
    ):
        (results / LOCK).write_text(told)
        assert has_driver(results) == drives
        assert bool(suites_to_resume(cluster, head_is_new=False)) == is_resumed
        assert len(suites_to_resume(cluster)) == 1, "no driver of an earlier head lives"


def test_a_suite_is_the_same_by_a_link_to_its_results(
    tmp_path: Path, cluster: ClusterFolder
) -> None:
    results = made_results(tmp_path, "a")
    (tmp_path / "link").symlink_to(results)
    register(cluster, Suite(results=results, folder=tmp_path))
    unregister(cluster, tmp_path / "link")
    assert suites_to_resume(cluster) == []
