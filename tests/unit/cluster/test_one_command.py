"""Commands on one cluster at the same time: one starts or ends it, the others wait."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from raysuite.cluster import client
from raysuite.cluster.backend import JobPhase, JobState
from raysuite.cluster.client import down, start
from raysuite.cluster.folder import ClusterFolder, folder_of
from raysuite.cluster.slurm import SlurmBackend
from raysuite.cluster.state_files import Cluster
from raysuite.errors import UserError
from raysuite.spec.site import SlurmSite

JOB = Cluster(
    name="mine", site=SlurmSite(name="far"), nodes=1, created=1.0, working_folder="/", job=""
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file for each job that waits: `sbatch` takes a while to make one."""
    jobs = tmp_path / "jobs"
    for folder in (tmp_path / "bin", jobs):
        folder.mkdir()
    programs = {
        "sbatch": f"sleep 0.2; echo $$; touch {jobs}/$$",
        "squeue": f"ls {jobs} | sed 's/$/|PENDING|Priority|1|/'",
        "scancel": f"sleep 0.2; rm -f {jobs}/*",
    }
    for name, does in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    return jobs


def test_of_four_simultaneous_starts_one_submits_a_job(slurm: Path) -> None:
    def begin(_: int) -> ClusterFolder | UserError:
        try:
            return start(JOB, ("true",))
        except UserError as error:
            return error

    with ThreadPoolExecutor(4) as four:
        ends = list(four.map(begin, range(4)))
    (folder,) = [end for end in ends if isinstance(end, ClusterFolder)]
    assert [file.name for file in slurm.iterdir()] == [folder.cluster().job]


@pytest.mark.parametrize("remove", [False, True])
def test_a_start_waits_for_a_teardown_and_keeps_its_token(slurm: Path, remove: bool) -> None:
    folder, ending = start(JOB, ("true",)), threading.Event()
    with ThreadPoolExecutor(1) as other:
        ended = other.submit(down, folder, 0.0, lambda _: ending.set(), remove)
        assert ending.wait(20)
        again = start(JOB, ("true",))
        assert ended.result() == []
    assert [file.name for file in slurm.iterdir()] == [again.cluster().job]
    assert again.token()


def test_a_teardown_during_a_start_ends_its_job(slurm: Path) -> None:
    with ThreadPoolExecutor(1) as other:
        other.submit(start, JOB, ("true",))
        while not (folder := folder_of("mine")).token_file.exists():
            pass
        assert down(folder, 0.0) == []
    assert list(slurm.iterdir()) == []


def test_a_lock_that_stays_is_named(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TURN_S", 0.1)
    folder = start(JOB, ("true",))
    with FileLock(folder.lock), pytest.raises(UserError, match=str(folder.lock)):
        down(folder, 0.0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_a_start_that_is_interrupted_leaves_no_secrets(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def refuse(*_: object) -> object:
        raise error

    monkeypatch.setattr(client, "backend_of", refuse)
    with pytest.raises(error):
        start(JOB, ("true",))
    folder = folder_of("mine")
    assert not folder.token_file.exists()
    assert not (folder.path / "cluster.json").exists()


@pytest.mark.parametrize(
    ("phase", "gone"), [("waiting", False), ("unknown", False), ("gone", True)]
)
def test_a_job_is_gone_only_if_slurm_states_it(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, phase: JobPhase, gone: bool
) -> None:
    folder = start(JOB, ("true",))
    monkeypatch.setattr(client, "_POLL_S", 0.01)
    monkeypatch.setattr(SlurmBackend, "states", lambda self, jobs: [JobState(phase)] * len(jobs))
    assert client._gone(folder, folder.cluster(), 0.05) == gone
