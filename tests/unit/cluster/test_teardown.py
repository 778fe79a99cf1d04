"""Taking down a cluster whose job ends slowly, or whose head is slow to answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.cluster import client as teardown
from raysuite.cluster.client import down
from raysuite.cluster.dashboard import Dashboard, NoAnswerError, RayJob, RefusedError
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.slurm import SlurmError
from raysuite.cluster.state_files import Cluster, Head
from raysuite.spec.site import SlurmSite

SITE = SlurmSite(name="far", nodes=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    """Of a job whose end `scancel` cannot hasten; `squeue` says what the file `said` holds."""
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    for name, script in (("squeue", f"cat {tmp_path}/said"), ("scancel", "exit 1")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("_ASKED_S", "_ENDS_S", "_POLL_S"):
        monkeypatch.setattr(teardown, name, 0.01)
    cluster = Cluster(name="mine", site=SITE, nodes=2, created=1.0, working_folder="/", job="17")
    folder = prepare(cluster)
    folder.write(Head(host="a", gcs="a:1", dashboard="http://a:2", mlflow=""))
    return folder


def says(tmp_path: Path, state: str) -> None:
    (tmp_path / "said").write_text(f"17|{state}|None|1|n1\n")


def answers(monkeypatch: pytest.MonkeyPatch, *given: list[RayJob] | NoAnswerError) -> list[object]:
    """What the dashboard will answer in turn; those that are left."""
    left: list[object] = list(given)

    def jobs(_: object) -> object:
        answer = left.pop(0)
        if isinstance(answer, NoAnswerError):
            raise answer
        return answer

    monkeypatch.setattr(Dashboard, "jobs", jobs)
    return left


def test_no_secret_outlives_a_job_that_ends_slowly(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, [])
    says(tmp_path, "COMPLETING")
    assert folder.token()
    (left,) = down(folder, 0.0)
    assert "17 is COMPLETING" in left
    assert not (folder.path / "token").exists()
    assert folder.head() is None


def test_a_job_that_cannot_be_ended_is_told(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, [])
    says(tmp_path, "RUNNING")
    with pytest.raises(SlurmError, match="scancel"):
        down(folder, 0.0)
    assert folder.token()


@pytest.mark.parametrize("grace_s", [60.0, 0.0])
def test_a_busy_head_is_asked_again(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace_s: float
) -> None:
    run = RayJob("digits", "RUNNING", "raysuite run x.yaml")
    done = RayJob("done", "SUCCEEDED", "raysuite run y.yaml")
    slow = NoAnswerError("slow")
    left = answers(monkeypatch, [done, run], slow, slow, [run, done], [done])
    says(tmp_path, "COMPLETING")
    told: list[str] = []
    down(folder, grace_s, told.append)
    if grace_s:
        assert left == []
        assert told == ["1 jobs stop: digits"] * 2 + ["ending", "killing the remaining processes"]
    else:
        assert len(left) == 4
        assert told[0].endswith("longer for digits")


@pytest.mark.parametrize(
    ("error", "silent_s"), [(RefusedError("gone"), 600.0), (NoAnswerError("silent"), -1.0)]
)
def test_a_head_that_is_gone_is_not_waited_for(
    folder: ClusterFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: NoAnswerError,
    silent_s: float,
) -> None:
    monkeypatch.setattr(teardown, "_SILENT_S", silent_s)
    left = answers(monkeypatch, error, [])
    says(tmp_path, "COMPLETING")
    down(folder, 600.0)
    assert left == [[]]


def test_a_job_is_cancelled_whatever_its_state(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scancel = tmp_path / "scancel"
    for state in ("RESV_DEL_HOLD", "COMPLETED"):
        (tmp_path / "said").write_text(f"17|{state}|None|1|\n")
        scancel.write_text(f"#!/bin/sh\necho $* >{tmp_path}/{state}; : >{tmp_path}/said\n")
        assert down(folder, 0.0) == []
        assert (tmp_path / state).read_text("utf-8") == "17\n"
