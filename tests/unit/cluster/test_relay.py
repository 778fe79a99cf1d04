"""Connections to the head at its second address."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysuite.cluster.agent.place import client_address, own_addresses
from raysuite.cluster.agent.relay import Relay
from raysuite.cluster.state_files import Head
from raysuite.errors import UserError
from raysuite.spec.site import SlurmSite
from raysuite.track.sync import _is_starting

INSIDE, OUTSIDE = "127.0.0.1", "127.0.0.2"


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what one client sent, once that client has ended sending."""
    with socket.create_server((INSIDE, 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                data = b""
                while part := client.recv(2**16):
                    data += part
                client.sendall(data)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def test_a_relay_carries_both_directions_and_their_ends() -> None:
    sent = b"x" * 1_000_000
    with echo() as port:
        relay = Relay(OUTSIDE, INSIDE, [port])
        try:
            with socket.create_connection((OUTSIDE, port), 10) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                got = b""
                while part := client.recv(2**16):
                    got += part
            assert got == sent
        finally:
            relay.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((OUTSIDE, port), 10)


def test_a_relay_to_a_server_that_is_not_there_ends_the_connection() -> None:
    with socket.create_server((INSIDE, 0)) as held:
        port = held.getsockname()[1]
    relay = Relay(OUTSIDE, INSIDE, [port])
    try:
        with socket.create_connection((OUTSIDE, port), 10) as client:
            assert client.recv(1) == b""
    finally:
        relay.close()


def test_clients_and_nodes_know_the_head_by_their_own_addresses(tmp_path: Path) -> None:
    loopback = own_addresses()["127.0.0.1"]
    assert client_address(SlurmSite(name="far", client_interface=loopback), "10.0.0.1") in {
        address for address, name in own_addresses().items() if name == loopback
    }
    assert client_address(SlurmSite(name="far"), "10.0.0.1") == "10.0.0.1"
    with pytest.raises(UserError, match=r"client_interface is 'nope0'.*valid:"):
        client_address(SlurmSite(name="far", client_interface="nope0"), "10.0.0.1")
    head = Head(
        host="n", gcs="10.0.0.1:6", dashboard="http://10.1.0.1:7", mlflow="http://10.1.0.1:8"
    )
    assert head.mlflow_inside == "http://10.0.0.1:8"
    assert head.model_copy(update={"mlflow": ""}).mlflow_inside == ""
    (tmp_path / "head.json").write_text(head.model_dump_json())
    for url in (head.mlflow, head.mlflow_inside):
        assert _is_starting(str(tmp_path), url)
    assert not _is_starting(str(tmp_path), "http://10.2.0.1:8")
