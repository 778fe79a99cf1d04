"""A dashboard that does not answer, each in its way."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from raysuite.cluster.dashboard import Dashboard, NoAnswerError, RefusedError


def test_a_head_that_dies_in_mid_answer_gives_none() -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(answer)
        with pytest.raises(NoAnswerError) as raised:
            Dashboard(f"http://127.0.0.1:{listener.getsockname()[1]}", "token", 60.0).jobs()
        served.result()
    assert not isinstance(raised.value, RefusedError)


def test_where_nobody_listens_the_connection_is_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # held, so that nobody else listens there
        with pytest.raises(RefusedError):
            Dashboard(f"http://127.0.0.1:{bound.getsockname()[1]}", "token").jobs()
