"""What a dashboard answers, and one that does not, each in its way."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from raysuite.cluster.dashboard import Dashboard, NoAnswerError, RayNode, RefusedError


@contextmanager
def answering(*bodies: bytes, length: int | None = None) -> Iterator[Dashboard]:
    """A dashboard whose next answers are `bodies`, announced with their length or another."""

    def answer() -> None:
        for body in bodies:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (length or len(body))
                connection.sendall(head + body)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(answer)
        yield Dashboard(f"http://127.0.0.1:{listener.getsockname()[1]}", "token", 60.0)
        served.result()


def test_a_head_that_dies_in_mid_answer_gives_none() -> None:
    with answering(b"[", length=100) as dashboard, pytest.raises(NoAnswerError) as raised:
        dashboard.jobs()
    assert not isinstance(raised.value, RefusedError)


def test_jobs_are_those_that_were_submitted_the_newest_last() -> None:
    alike = {"type": "SUBMISSION", "status": "RUNNING", "entrypoint": "x"}
    jobs = [
        {**alike, "submission_id": "late", "start_time": 9},
        {**alike, "type": "DRIVER", "submission_id": None},
        {**alike, "submission_id": "early", "start_time": 5},
        {**alike, "submission_id": "waits", "start_time": None},
    ]
    body = json.dumps(jobs).encode()
    with answering(body) as dashboard:
        found = [each.id for each in dashboard.jobs()]
    assert found == ["waits", "early", "late"]


def test_a_jobs_output_is_read_as_bytes() -> None:
    with answering(b'{"driver_node_id": "3468"}', b"caf\xe9\n") as dashboard:
        assert dashboard.log("one") == b"caf\xe9\n"


def test_nodes_have_the_resources_that_ray_lists() -> None:
    entries = [
        {"node_ip": "1.0", "state": "ALIVE", "resources_total": {"CPU": 4.0, "GPU": 2.0}},
        {"node_ip": "1.1", "state": "DEAD", "resources_total": None},
    ]
    body = json.dumps({"data": {"result": {"result": entries}}}).encode()
    with answering(body) as dashboard:
        assert dashboard.nodes() == [
            RayNode("1.0", True, 4.0, 2.0),
            RayNode("1.1", False, 0.0, 0.0),
        ]
    body = b'{"data": {"result": null}}'
    with answering(body) as dashboard, pytest.raises(NoAnswerError, match="no nodes"):
        dashboard.nodes()


def test_where_nobody_listens_the_connection_is_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # held, so that nobody else listens there
        with pytest.raises(RefusedError):
            Dashboard(f"http://127.0.0.1:{bound.getsockname()[1]}", "token").jobs()
