"""A head hands suites in once, however late Ray's job server comes."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysuite.cluster.agent import head
from raysuite.cluster.agent.head import Resuming
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.state_files import Cluster, Stop
from raysuite.cluster.suites import Suite, job_id, register
from raysuite.spec.site import LocalSite
from tests.unit.cluster.test_suites import holder

JOB = "cd '/a b' && exec raysuite run --resume-from "


class Jobs(http.server.BaseHTTPRequestHandler):
    """Ray's address for jobs, as far as it is asked here: deaf, then answering too late."""

    known: list[dict[str, str]]
    deaf: int

    def do_GET(self) -> None:
        self._answer(list(self.known))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if type(self).deaf > 1:
            type(self).deaf -= 1
            return self.send_error(500, "No available agent")
        self.known.append({"type": "SUBMISSION", "status": "RUNNING", **body})
        if type(self).deaf == 1:  # it was started, and nobody heard so
            type(self).deaf = 0
            return self.send_error(500)
        return self._answer({"submission_id": body["submission_id"]})

    def _answer(self, body: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Jobs.known, Jobs.deaf = [], 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jobs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    """Of a cluster with one suite under way."""
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    site = LocalSite(name="local")
    made = prepare(Cluster(name="a", site=site, nodes=1, created=1.0, working_folder="/"))
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "plan.json").write_text("[]")
    register(made, Suite(results=tmp_path / "r", folder=Path("/a b")))
    return made


@pytest.mark.parametrize("deaf", [0, 1, 3])
def test_it_is_handed_in_once(url: str, folder: ClusterFolder, tmp_path: Path, deaf: int) -> None:
    Jobs.deaf = deaf
    left = Resuming(folder)
    left.look(url)
    assert Jobs.known == [], "Ray does not answer yet"
    left.begin()
    for _ in range(6):
        left.look(url)
    (job,) = Jobs.known
    assert job["entrypoint"] == f"{JOB}{tmp_path / 'r'}"
    assert job["submission_id"].startswith("resumed-")


def test_it_is_given_up_in_the_end(
    url: str,
    folder: ClusterFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(head, "_PATIENCE_S", -1.0)
    Jobs.deaf = 100
    late = Resuming(folder)
    late.begin()
    late.look(url)
    assert "not be resumed" in caplog.text
    Jobs.deaf = 0
    late.look(url)
    assert Jobs.known == []


def test_a_job_keeps_its_id_when_the_head_is_started_again(
    url: str, folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '{"metadata": {"job_submission_id": "raysubmit_1"}}'
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", config)
    suite = Suite(results=tmp_path / "r", folder=Path("/a b"), job=job_id())
    for job in ("raysubmit_1", "resumed-2", "resumed-3"):  # as each of its drivers does
        register(folder, suite.model_copy(update={"job": job}))
    resuming = Resuming(folder)
    resuming.begin()
    resuming.look(url)
    resuming.look(url)
    assert [job["submission_id"] for job in Jobs.known] == ["raysubmit_1"]
    Jobs.known[0]["status"] = "FAILED"
    monkeypatch.setattr(head, "_LOOK_EACH_S", -1.0)
    driver = holder(tmp_path / "r")
    driver.kill()
    driver.communicate()
    resuming._add([])
    resuming.look(url)
    assert len(Jobs.known) == 2
    assert Jobs.known[1]["submission_id"].startswith("resumed-")


@pytest.mark.parametrize("how", ["killed", "failed", "ended"])
def test_a_suite_whose_driver_died_is_resumed_at_most_three_times(
    url: str, folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(head, "_LOOK_EACH_S", -1.0)
    driver = holder(tmp_path / "r", fails=how == "failed")
    resuming = Resuming(folder)
    resuming.begin()
    resuming.look(url)
    assert Jobs.known == [], "its driver lives"
    if how == "killed":
        driver.kill()
    driver.communicate()
    counts = []
    for _ in range(5):
        resuming.look(url)
        resuming.look(url)  # the job runs, and does not hold the results folder yet
        counts.append(len(Jobs.known))
        for job in Jobs.known:
            job["status"] = "FAILED"
    assert counts == ([0] * 5 if how == "ended" else [1, 2, 3, 3, 3])
    assert len(list(folder.suites.iterdir())) == (1 if how == "ended" else 0)


def bereft(folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resuming:
    """A running head, one of whose suites has just lost its driver."""
    monkeypatch.setattr(head, "_LOOK_EACH_S", -1.0)
    driver = holder(tmp_path / "r")
    resuming = Resuming(folder)
    resuming.begin()
    driver.kill()
    driver.communicate()
    return resuming


def test_a_suite_is_resumed_once_its_results_can_be_written(
    url: str, folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming = bereft(folder, tmp_path, monkeypatch)
    (tmp_path / "r" / ".writable").symlink_to("/dev/full")  # the look removes it
    resuming.look(url)
    assert Jobs.known == []
    resuming.look(url)
    assert len(Jobs.known) == 1


def test_a_suite_is_not_resumed_while_the_cluster_ends(
    url: str, folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming = bereft(folder, tmp_path, monkeypatch)
    folder.write(Stop(reason="down", deadline=time.time() + 60))
    resuming.look(url)
    assert Jobs.known == []
