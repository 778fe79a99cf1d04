from __future__ import annotations

import os
import socket
from pathlib import Path
from unittest.mock import patch

import pytest

from raysuite.measure import transport
from raysuite.measure.transport import Transport, fast_networks, infiniband, nccl_names, tcp_names

LOG = """\
node-1:20:289 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>
node-1:20:289 [0] NCCL INFO Using network IB
node-1:20:293 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/CUMEM
node-1:20:293 [1] NCCL INFO Channel 02/0 : 1[1] -> 0[0] via P2P/direct pointer/read
node-1:20:293 [0] NCCL INFO Channel 00 : 1[2b000] -> 8[25000] [send] via NET/IB/0/GDRDMA
node-1:20:293 [0] NCCL INFO Channel 00/0 : 3[3] -> 7[3] [receive] via NET/IBext_v8/3(1)/GDRDMA
node-1:20:293 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
node-1:20:293 [0] NCCL INFO Connected all rings
"""


def test_nccls_choices_are_read_from_its_log() -> None:
    assert nccl_names(LOG) == {
        "NCCL, P2P/CUMEM",
        "NCCL, P2P/direct",
        "NCCL, NET/IB/GDRDMA",
        "NCCL, NET/IBext_v8/GDRDMA",
        "NCCL, SHM/direct/direct",
    }
    assert nccl_names("x [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0") == {
        "NCCL, NET/Socket"
    }


def test_connections_from_here_on_are_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_connection(server.getsockname()),
        patch.dict(os.environ, MASTER_PORT=str(store.getsockname()[1])),
    ):
        found = Transport(on_gpu=False)
        with socket.create_connection(store.getsockname()) as client:
            assert found.names() == []
            served, _ = store.accept()
            with served:  # the connection's end in the process of the store
                client.close()
                assert found.names() == []
        with socket.create_connection(server.getsockname()):
            assert found.names() == ["TCP, this host"]


def test_a_connection_to_another_host_is_named_by_its_interface() -> None:
    assert tcp_names({("127.0.0.1", 1, "192.0.2.7", 2), ("192.0.2.8", 1, "192.0.2.9", 2)}) == {
        "TCP, lo",
        "TCP, 192.0.2.8",
    }


def test_the_log_is_in_memory_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_log", None)
    with patch.dict(os.environ):
        os.environ.pop("NCCL_DEBUG", None)
        first = Transport(on_gpu=True)
        with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as log:  # as NCCL opens it
            log.write(LOG)
            log.flush()
            assert "NCCL, NET/IB/GDRDMA" in first.names()
            second = Transport(on_gpu=True)
            assert second.names() == []
            log.write("x [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n")
            log.flush()
            assert second.names() == ["NCCL, NET/Socket"]
    assert transport._log is not None
    os.close(transport._log)


def test_a_log_of_the_users_own_is_left_to_her(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_log", None)
    with patch.dict(os.environ, NCCL_DEBUG="WARN"):
        before = dict(os.environ)
        assert Transport(on_gpu=True).names() == []
        assert dict(os.environ) == before


def test_active_infiniband_ports_are_found(tmp_path: Path) -> None:
    for device, layer, state in (
        ("mlx5_0", "InfiniBand", "4: ACTIVE"),
        ("mlx5_1", "InfiniBand", "1: DOWN"),
        ("mlx5_2", "Ethernet", "4: ACTIVE"),
    ):
        port = tmp_path / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text(f"{state}\n")
    assert infiniband(tmp_path) == ["mlx5_0"]
    (tmp_path / "class" / "cxi0").mkdir(parents=True)
    assert fast_networks(tmp_path, tmp_path / "class") == ["mlx5_0", "cxi0"]
    assert infiniband(tmp_path / "none") == []
