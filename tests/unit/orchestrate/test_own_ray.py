"""The token of a Ray of our own: in one file, of this user alone, for as long as that Ray lives."""

from __future__ import annotations

import gc
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysuite.errors import RayStartError, UserError
from raysuite.orchestrate import ray_cluster
from raysuite.orchestrate.ray_cluster import own_loopback, own_token
from tests.require import require


def _tokens() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")}


def test_it_is_fresh_and_this_users_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    tokens = []
    before = os.umask(0)
    try:
        for folder in folders:
            folder.mkdir()
            with own_token(folder) as file:
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
                tokens.append(file.read_text("utf-8"))
    finally:
        os.umask(before)
    assert all(re.fullmatch("[0-9a-f]{64}", token) for token in tokens)
    assert tokens[0] != tokens[1]


def test_the_environment_names_the_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-another-cluster")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    before = _tokens()
    with own_token(tmp_path) as file:
        assert _tokens() == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    assert _tokens() == before


def test_it_never_takes_a_file_that_lies_there(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("known to another", "utf-8")
    with pytest.raises(FileExistsError), own_token(tmp_path):
        pass


LISTEN = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[0])"


def test_what_is_started_meanwhile_listens_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("compiler")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    before = dict(os.environ)
    with own_loopback(tmp_path):
        said = subprocess.check_output([sys.executable, "-S", "-c", LISTEN], text=True)
        assert said == "127.0.0.1\n"
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"
    assert dict(os.environ) == before


def test_a_ray_that_was_imported_before_stays_on_loopback_too(tmp_path: Path) -> None:
    from ray._private import ray_constants, services

    before = ray_constants.ENABLE_RAY_CLUSTER
    with own_loopback(tmp_path):
        assert services.get_node_ip_address() == "127.0.0.1"
    assert before == ray_constants.ENABLE_RAY_CLUSTER


def test_where_nothing_can_be_compiled_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level("INFO"), own_loopback(tmp_path):
        assert "LD_PRELOAD" not in os.environ
    assert "no C compiler here" in caplog.text


ASK_AFTERWARDS = """\
from raysuite.errors import UserError
from raysuite.orchestrate.ray_cluster import connect
try:
    with connect("127.0.0.1:1"):
        pass
except UserError:
    pass
import ray
ray.put(1)
"""


def test_who_asks_when_it_has_ended_begins_no_other() -> None:
    words = [sys.executable, "-c", ASK_AFTERWARDS]
    asked = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert asked.returncode == 1
    assert "not been started" in asked.stderr


def test_what_rays_threads_print_is_logged(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = sys.stdout
    with caplog.at_level("DEBUG"), ray_cluster._without_rays_lines():
        for name in ("ray_listen_error_messages", "ray-fit"):
            thread = threading.Thread(target=print, args=[f"of {name}"], name=name)
            thread.start()
            thread.join()
        print("ours")
    assert sys.stdout is before
    assert capsys.readouterr().out == "of ray-fit\nours\n"
    assert "ray: of ray_listen_error_messages" in caplog.text


@pytest.mark.parametrize("variable", ["", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "file"])
def test_a_cluster_gets_a_token_where_the_user_has_one(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _tokens():
        monkeypatch.delenv(name)
    monkeypatch.setattr(ray_cluster, "_TOKEN_FILE", tmp_path / "token")
    if variable == "file":
        (tmp_path / "token").touch()
    elif variable:
        monkeypatch.setenv(variable, "x")
    assert ray_cluster._token() == ({"RAY_AUTH_MODE": "token"} if variable else {})


def test_another_users_cluster_is_never_joined() -> None:
    with pytest.raises(UserError, match="maybe another user's"), ray_cluster.connect("auto"):
        pass


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("[fe80::1]:80", ("fe80::1", 80))],
)
def test_an_address_has_a_host_and_a_port(
    address: str, expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    closed = SimpleNamespace(close=lambda: asked.append("closed"))
    monkeypatch.setattr("socket.create_connection", lambda *given: asked.append(given) or closed)
    ray_cluster.check_listening(address)
    assert asked == [(expected, 3.0), "closed"]


def test_garbage_is_collected_again_once_ray_has_ended() -> None:
    joined, seen = ExitStack(), list[bool]()
    release = threading.Event()
    joined.callback(lambda: seen.append(release.wait(60)))
    with ray_cluster.ending(joined):
        assert (gc.isenabled(), seen) == (False, [])
        release.set()
    assert (gc.isenabled(), seen) == (True, [True])


class _Ray:
    """Starts a process, writes into its folder, and then fails as often as it is asked to."""

    def __init__(self, folder: Path, failures: int) -> None:
        self._temp, self._failures = folder / "r", failures
        self._environment = {**os.environ, "RAY_TMPDIR": str(folder)}
        self.processes: list[subprocess.Popen[bytes]] = []

    def initialize(self, **options: object) -> None:
        assert options["_temp_dir"] == str(self._temp)
        assert not self._temp.exists()
        assert all(process.poll() is not None for process in self.processes)
        logs = self._temp / "session_latest" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.err").write_text("[T C 1 1] (raylet) a.cc:1:  out of patience\nframe")
        words = [sys.executable, "-c", "import time; time.sleep(60)", str(logs)]
        self.processes.append(subprocess.Popen(words, env=self._environment))
        if len(self.processes) <= self._failures:
            raise Exception("timed out")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_a_start_that_failed_is_repeated_with_nothing_of_it_left(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = _Ray(short, failures=2)
    monkeypatch.setattr(ray_cluster, "_initialize", ray.initialize)
    ray_cluster._start(short, 20_000)
    assert len(ray.processes) == 3
    ray.processes[-1].kill()
    ray.processes[-1].wait()


def test_a_folder_whose_path_is_too_long_is_refused_before_a_start(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short / ("long" * 12)
    ray = _Ray(folder, failures=9)
    monkeypatch.setattr(ray_cluster, "_initialize", ray.initialize)
    with pytest.raises(UserError, match="TMPDIR"):
        ray_cluster._start(folder, 20_000)
    assert not ray.processes


def test_starts_that_all_fail_are_one_error_with_rays_reason(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = _Ray(short, failures=9)
    monkeypatch.setattr(ray_cluster, "_initialize", ray.initialize)
    with pytest.raises(RayStartError, match="raylet: out of patience") as raised:
        ray_cluster._start(short, 20_000)
    assert "\n" not in str(raised.value)
    assert len(ray.processes) == 3
    assert all(process.poll() is not None for process in ray.processes)
    assert not (short / "r").exists()


@pytest.mark.parametrize("given", [None, "/mine"])
def test_compiled_code_is_in_the_folder_of_this_ray_unless_the_user_names_another(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    killed: list[str] = []
    monkeypatch.setattr(ray_cluster, "own_loopback", lambda folder: nullcontext())
    monkeypatch.setattr(ray_cluster, "_worker_server", lambda folder: nullcontext())
    monkeypatch.setattr(ray_cluster, "kill_left_behind", killed.append)
    before = dict(os.environ)
    with ray_cluster.own_folder() as folder:
        assert os.environ[name] == (given or str(folder / "inductor"))
        assert os.environ["RAY_TMPDIR"] == str(folder)
        assert not killed
    assert (killed, folder.exists()) == ([str(folder)], False)
    assert dict(os.environ) == before
