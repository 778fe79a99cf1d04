"""A cluster behind a login node, reached through a real sshd."""

from __future__ import annotations

import http.server
import os
import re
import signal
import socket
import stat
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from raysuite.cluster import private
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.forward import forwarded
from raysuite.cluster.state_files import Head, Mlflow
from raysuite.errors import UserError
from raysuite.files import write_whole
from tests.require import require
from tests.secrets import files_with, processes_with
from tests.sshd import PASSPHRASE, OwnSshd
from tests.terminal import Terminal

pytestmark = [pytest.mark.integration]


class _Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"port {self.server.server_address[1]}".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """URLs of two servers on loopback: what a dashboard and MLflow are to the login node."""
    made = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) for _ in range(2)]
    for server in made:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_address[1]}" for server in made]
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnSshd]:
    require("sshd")
    made = OwnSshd(tmp_path_factory.mktemp("site"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def here(site: OwnSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """RAYSUITE_HOME of the laptop."""
    monkeypatch.setenv("PATH", f"{site.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    return tmp_path


def _cluster(site: OwnSshd, name: str, servers: list[str]) -> ClusterFolder:
    folder = ClusterFolder(private.make_folder(site.home / "clusters" / name))
    write_whole(folder.token_file, private.new_token().encode(), private.MODE)
    folder.write(Mlflow(username="raysuite", password=private.new_token()))
    folder.write(Head(host="n0", gcs="10.0.0.1:1", dashboard=servers[0], mlflow=servers[1]))
    return folder


def _answers(port: int | None) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ssh(parent: int | None = None) -> psutil.Process:
    """The ssh that a process has started; ours by default."""
    (found,) = [each for each in psutil.Process(parent).children() if each.name() == "ssh"]
    return found


def test_it_is_as_if_it_were_here(site: OwnSshd, here: Path, servers: list[str]) -> None:
    far = _cluster(site, "far", servers)
    with forwarded("site", "far") as folder:
        assert folder.path.is_relative_to(here)
        assert folder.token() == far.token()
        assert folder.mlflow_user() == far.mlflow_user()
        files = list(folder.path.iterdir())
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        head = folder.head()
        assert head is not None
        ends = {head.dashboard: servers[0], head.mlflow: servers[1]}
        for near, end in ends.items():
            assert near != end
            answer = urllib.request.urlopen(near, timeout=60).read().decode()
            assert answer == f"port {urlsplit(end).port}"
        assert processes_with(far.token()) == []
        assert files_with(far.token(), here) == {folder.token_file}
    assert not folder.path.exists()
    assert not any(_answers(urlsplit(near).port) for near in ends)


def test_ctrl_c_leaves_the_tunnel_to_us(site: OwnSshd, servers: list[str]) -> None:
    _cluster(site, "far", servers)
    with forwarded("site", "far") as folder:
        head = folder.head()
        assert head is not None
        _ssh().send_signal(signal.SIGINT)  # a terminal sends it to all of a command
        time.sleep(1)
        assert urllib.request.urlopen(head.dashboard, timeout=60).status == 200


def test_a_tunnel_that_was_stopped_is_ended_at_once(site: OwnSshd, servers: list[str]) -> None:
    _cluster(site, "far", servers)
    with forwarded("site", "far"):
        ssh = _ssh()
        ssh.suspend()
        ended = time.monotonic()
    assert not ssh.is_running()
    assert time.monotonic() - ended < 60  # it would be waited for that long


def test_the_only_one_needs_no_name(site: OwnSshd, servers: list[str]) -> None:
    for folder in (site.home / "clusters").glob("*"):
        (folder / "head.json").unlink()
    only = _cluster(site, "only", servers)
    with forwarded("site") as folder:
        assert folder.token() == only.token()
    _cluster(site, "other", servers)
    with pytest.raises(UserError, match=r"several clusters there: .*only.*name one by --cluster"):
        forwarded("site").__enter__()


@pytest.mark.parametrize(
    ("login", "name", "message"),
    [
        ("site", "none", "there are:"),
        ("site", "a;b", "cannot be called"),
        ("down", "far", "Connection refused"),
        ("-oProxyCommand=true", "far", "reached by"),
    ],
)
def test_what_goes_wrong_is_told(
    login: str, name: str, message: str, servers: list[str], site: OwnSshd, here: Path
) -> None:
    _cluster(site, "far", servers)
    with pytest.raises(UserError, match=message):
        forwarded(login, name).__enter__()
    assert not list(here.glob("forwarded/*"))


FORWARD = ("raysuite", "job", "forward")


def _tunnel(terminal: Terminal) -> tuple[int, int]:
    """The near ports of `raysuite job forward`, once it is open."""
    said = terminal.until("the tunnel is open until Ctrl-C\r\n")
    near = re.findall(r"(?:RAY_ADDRESS|MLFLOW_TRACKING_URI)=http://127.0.0.1:(\d+)", said)
    assert [_answers(int(port)) for port in near] == [True, True]
    return int(near[0]), int(near[1])


def test_ssh_asks_in_the_terminal_and_once(site: OwnSshd, servers: list[str], here: Path) -> None:
    _cluster(site, "far", servers)
    with Terminal(*FORWARD, "asking", "-c", "far") as terminal:
        terminal.until("passphrase for key")
        terminal.type(f"{PASSPHRASE}\n")
        near = _tunnel(terminal)
        assert terminal.said.count("passphrase for key") == 1
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert not list(here.glob("forwarded/*"))
        assert not any(_answers(port) for port in near)


@pytest.mark.parametrize("end", ["the terminal closes", "SIGTERM", "SIGKILL"])
def test_a_tunnel_goes_with_its_command(
    end: str, site: OwnSshd, servers: list[str], here: Path
) -> None:
    far = _cluster(site, "far", servers)
    with Terminal(*FORWARD, "site", "-c", "far") as terminal:
        near = _tunnel(terminal)
        ssh = _ssh(terminal.process.pid)
        words = ssh.cmdline()
        shared = Path(words[words.index("-S") + 1]).parent
        if end == "the terminal closes":
            terminal.close()
        else:
            terminal.process.send_signal(signal.Signals[end])
        code = terminal.wait()
        psutil.wait_procs([ssh], 60)
        assert not ssh.is_running()
        assert not any(_answers(port) for port in near)
        if end == "SIGKILL":
            shared.rmdir()  # nobody was left to do that
        else:
            assert not shared.exists()
            assert code == 128 + (signal.SIGTERM if end == "SIGTERM" else signal.SIGHUP)
            assert files_with(far.token(), here) == set()


def test_a_tunnel_that_ends_is_told(site: OwnSshd, servers: list[str], here: Path) -> None:
    _cluster(site, "far", servers)
    with Terminal(*FORWARD, "site", "-c", "far") as terminal:
        _tunnel(terminal)
        site.hang_up()
        said = terminal.until("`ssh site` has ended: ")
        assert terminal.wait() == 1
        assert "it printed nothing" not in said
        assert not list(here.glob("forwarded/*"))
