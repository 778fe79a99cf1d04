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
from raysuite.cluster.dashboard import Dashboard
from raysuite.cluster.suites import Resume

RESUME = Resume(("raysuite", "run", "--resume-from", "/r s"), Path("/a b"))


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
def dashboard() -> Iterator[Dashboard]:
    Jobs.known, Jobs.deaf = [], 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jobs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Dashboard(f"http://127.0.0.1:{server.server_address[1]}", "token")
        server.shutdown()


@pytest.mark.parametrize("deaf", [0, 1, 3])
def test_it_is_handed_in_once(dashboard: Dashboard, deaf: int) -> None:
    Jobs.deaf = deaf
    left = Resuming([RESUME])
    for _ in range(6):
        left.look(dashboard)
    (job,) = dashboard.jobs()
    assert job.entrypoint == "cd '/a b' && exec raysuite run --resume-from '/r s'"
    assert job.id.startswith("resumed-")


def test_it_is_given_up_in_the_end(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resuming, "_PATIENCE_S", -1.0)
    Jobs.deaf = 100
    left = Resuming([RESUME])
    left.look(dashboard)
    assert "could not be resumed" in caplog.text
    Jobs.deaf = 0
    left.look(dashboard)
    assert dashboard.jobs() == []
