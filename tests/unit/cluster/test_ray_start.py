"""A node of Ray that starts slowly has more time, and one that fails shows Ray's own reason."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysuite.cluster import ray_start
from raysuite.cluster.ray_shortcuts import SHORTCUTS
from raysuite.cluster.ray_start import NO_SERVER, patience, raylet_lives, reason
from raysuite.errors import RayStartError
from tests.waiting import until

FATAL = (
    """\
[2026-01-01 10:00:00,258 C 11 11] (raylet) node_manager.cc:3576:  An unexpected system state has \
occurred. You have likely discovered a bug in Ray. Please report it. Check failed: \
status.has_value() Timed out waiting for file /tmp/x/metrics_agent_port_e5
*** StackTrace Information ***
/ray/raylet(+0xff770a) [0x5581056a970a] ray::operator<<()
"""
    + "/ray/raylet(+0xff770a) [0x5581056a970a] frame\n" * 100
)


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    process = subprocess.Popen([program, "60"])
    until(raylet_lives)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "session_latest"
    (folder / "logs").mkdir(parents=True)
    (folder / "sockets").mkdir()
    return folder


@pytest.mark.parametrize("reaped", [False, True])
def test_a_raylet_that_has_ended_is_seen(raylet: subprocess.Popen[bytes], reaped: bool) -> None:
    raylet.kill()
    if reaped:
        raylet.wait()
    until(lambda: not raylet_lives())


def test_another_child_is_no_raylet() -> None:
    other = subprocess.Popen(["sleep", "60"])
    assert not raylet_lives()
    other.kill()
    other.wait()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("raylet.err", FATAL, "Timed out waiting for file /tmp/x/metrics_agent_port_e5"),
        ("gcs_server.err", "[T E 1 1] (gcs_server) a.cc:1: no port\nmore", "no port"),
        ("runtime_env_agent.err", "Traceback:\n  frame\nOSError: in use\n", "OSError: in use"),
    ],
)
def test_reason_is_the_error_and_not_its_stack(
    session: Path, tmp_path: Path, name: str, text: str, expected: str
) -> None:
    (session / "logs" / "raylet.err").write_text("", "utf-8")
    (session / "logs" / name).write_text(text, "utf-8")
    assert reason(tmp_path) == f"{name.removesuffix('.err')}: {expected}"


def test_reason_is_empty_where_no_log_has_one(session: Path, tmp_path: Path) -> None:
    assert reason(tmp_path) == ""
    assert reason(tmp_path / "elsewhere") == ""


class _Gcs:
    """Answers Ray's Python for a node once its raylet would be there: it has learned all ports."""

    def __init__(self, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from ray._private import services

        self._session = session
        (session / "sockets" / "raylet").touch()
        monkeypatch.setattr(services, "get_node", self.get_node)

    def get_node(self, gcs: str, node_id: str) -> dict[str, int]:
        files = [self._session / f"{name}_{node_id}" for name in NO_SERVER]
        if not all(file.exists() for file in files):
            raise RuntimeError("no such node")
        return {file.name: int(file.read_text()) for file in files}


def ask() -> object:
    """As Ray's Python does after it has started the raylet."""
    from ray._private import services

    return services.get_node("127.0.0.1:1", "e5")


def test_ports_of_a_slow_agent_are_written_for_it(
    session: Path,
    tmp_path: Path,
    raylet: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _Gcs(session, monkeypatch)
    monkeypatch.setattr(ray_start, "_EACH_S", 0.1)
    (session / "metrics_agent_port_e5").write_text("7")  # it has come so far
    with patience(tmp_path):
        found = ask()
    ports = NO_SERVER | {"metrics_agent_port": 7}
    assert found == {f"{name}_e5": port for name, port in ports.items()}


def test_ports_are_written_without_shortcuts_too(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHORTCUTS, "0")
    monkeypatch.setattr(ray_start, "_EACH_S", 0.1)
    program = shutil.copy(shutil.which("sh") or "", tmp_path / "raylet")
    process = subprocess.Popen([program, "-c", "read line", "raylet", "--node_id=e5"], stdin=-1)
    with patience(tmp_path):
        for name, port in NO_SERVER.items():
            file = session / f"{name}_e5"
            until(file.exists)
            assert file.read_text() == str(port)
    process.communicate()


def test_the_raylet_has_its_ports_at_once_where_its_last_agent_is_up(
    session: Path,
    tmp_path: Path,
    raylet: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _Gcs(session, monkeypatch)
    monkeypatch.setattr(ray_start, "_EACH_S", 100.0)
    threading.Timer(0.2, (session / "runtime_env_agent_port_e5").write_text, ["8"]).start()
    with patience(tmp_path):
        assert ask()


@pytest.mark.parametrize(
    ("agents", "fails"),
    [
        ([True] * 3, False),
        ([False] * 3, False),
        ([False, True, True], False),
        ([True, False], True),
    ],
    ids=["alive", "not begun", "begun late", "ended"],
)
def test_agents_that_have_ended_are_not_waited_for_and_slow_ones_are(
    session: Path, monkeypatch: pytest.MonkeyPatch, agents: list[bool], fails: bool
) -> None:
    """`agents`: whether one lives, at each look."""
    looks = iter(agents)

    def children() -> list[bool]:
        found = next(looks, None)
        if found is None:
            (session / "runtime_env_agent_port_e5").touch()
        return [found is not False]

    monkeypatch.setattr(ray_start, "_raylet", lambda: SimpleNamespace(children=children))
    monkeypatch.setattr(ray_start, "_lives", bool)
    monkeypatch.setattr(ray_start, "_STEP_S", 0.0)
    with pytest.raises(RayStartError, match="ended") if fails else nullcontext():
        ray_start._write_ports(session, "e5", {"metrics_agent_port": 7}, 60.0)
    assert (session / "metrics_agent_port_e5").exists() != fails


@pytest.mark.parametrize("has_ports", [False, True])
def test_a_raylet_that_ends_is_a_failed_start_with_its_reason(
    session: Path, tmp_path: Path, raylet: subprocess.Popen[bytes], has_ports: bool
) -> None:
    (session / "logs" / "raylet.err").write_text(FATAL, "utf-8")
    threading.Timer(0.1, raylet.kill).start()
    with (
        patience(tmp_path, no_agent=has_ports),
        pytest.raises(RayStartError, match=r"^raylet: Timed out waiting"),
    ):
        ask()


def test_ray_has_files_of_these_names() -> None:
    import inspect

    from ray._private import node
    from ray._raylet import (  # type: ignore[attr-defined]
        DASHBOARD_AGENT_LISTEN_PORT_NAME,
        METRICS_AGENT_PORT_NAME,
        METRICS_EXPORT_PORT_NAME,
        RUNTIME_ENV_AGENT_PORT_NAME,
        get_port_filename,
    )

    names = [METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME, DASHBOARD_AGENT_LISTEN_PORT_NAME]
    assert list(NO_SERVER) == names
    node_id = "e5" * 28
    assert get_port_filename(node_id, RUNTIME_ENV_AGENT_PORT_NAME) == (
        f"runtime_env_agent_port_{node_id}"
    )
    assert "ray._private.services.get_node(" in inspect.getsource(node.Node.__init__)
