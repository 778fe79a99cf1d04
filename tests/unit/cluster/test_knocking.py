"""Whether somebody listens at an address, or somebody is there who does not."""

from __future__ import annotations

import socket

from raysuite.cluster.agent.ray_process import answers, refuses
from raysuite.cluster.ports import free_port


def test_who_listens_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert answers("127.0.0.1", port)
        assert not refuses("127.0.0.1", port)


def test_a_host_without_a_listener_refuses() -> None:
    port = free_port()
    assert not answers("127.0.0.1", port)
    assert refuses("127.0.0.1", port)


def test_silence_is_no_refusal() -> None:
    # a full queue of connections: the kernel drops what comes then, without a word
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert not refuses("127.0.0.1", port, timeout_s=0.2)
