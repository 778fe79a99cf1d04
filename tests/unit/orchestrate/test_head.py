"""Whether a head still answers after a trainer's error."""

from __future__ import annotations

import socket
import threading

import pytest

from raysuite.cluster.ports import free_port
from raysuite.errors import HeadLostError
from raysuite.orchestrate.suite import wait_while_reachable


def test_a_head_that_answers_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wait_while_reachable(f"127.0.0.1:{listener.getsockname()[1]}", 0.6)


def test_a_closed_port_is_a_lost_head() -> None:
    with pytest.raises(HeadLostError, match="--resume-from"):
        wait_while_reachable(f"127.0.0.1:{free_port()}", 60.0)


def test_so_is_one_that_closes_a_moment_later() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    threading.Timer(0.7, listener.close).start()
    with pytest.raises(HeadLostError):
        wait_while_reachable(address, 60.0)
