"""A head hands suites in once, however late Ray's job server comes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysuite.cluster.agent import resuming
from raysuite.cluster.agent.resuming import Resuming
from raysuite.cluster.files import Cluster
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.suites import Suite, register
from raysuite.spec.site import LocalSite

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
    monkeypatch.setattr(resuming, "_PATIENCE_S", -1.0)
    Jobs.deaf = 100
    late = Resuming(folder)
    late.begin()
    late.look(url)
    assert "could not be resumed" in caplog.text
    Jobs.deaf = 0
    late.look(url)
    assert Jobs.known == []
