"""What asks for every interface gets one; what chose its address keeps it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raysuite.cluster import binding
from raysuite.cluster.folder import prepare
from raysuite.cluster.slurm import SlurmBackend
from raysuite.cluster.state_files import Cluster
from raysuite.compiled import build, library_in
from raysuite.spec.site import SlurmSite
from tests.require import require

ADDRESS = "127.0.0.9"
"""The whole of 127.0.0.0/8 is this machine's loopback."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    require("compiler")
    return binding.variables(ADDRESS, tmp_path_factory.mktemp("node"))


def _says(code: str, settings: dict[str, str]) -> str:
    words = [sys.executable, "-S", "-c", f"import socket\ns = socket.socket\n{code}"]
    done = subprocess.run(
        words, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        ("a = s(); a.bind(('', 0))", ADDRESS),
        ("a = s(); a.listen()", ADDRESS),
        ("a = s(socket.AF_INET6); a.bind(('::', 0))", f"::ffff:{ADDRESS}"),
        ("a = s(socket.AF_INET6); a.bind(('::ffff:0.0.0.0', 0))", f"::ffff:{ADDRESS}"),
        ("a = s(socket.AF_INET6); a.setsockopt(41, 26, 1); a.bind(('::', 0))", "::1"),
        ("a = s(); a.bind(('127.0.0.1', 0)); a.listen()", "127.0.0.1"),
        ("a = s(type=socket.SOCK_DGRAM); a.bind(('', 0))", "0.0.0.0"),
    ],
)
def test_where_a_socket_is_bound(settings: dict[str, str], code: str, bound: str) -> None:
    assert _says(f"{code}; print(a.getsockname()[0])", settings) == bound


def test_the_port_and_connections_are_as_asked(settings: dict[str, str]) -> None:
    code = (
        "a = s(); a.bind(('', 0)); a.listen(); port = a.getsockname()[1]; a.close()\n"
        "b = s(); b.setsockopt(1, 2, 1); b.bind(('', port)); b.listen()\n"
        f"c = s(); c.connect(('{ADDRESS}', port)); d, _ = b.accept(); c.sendall(b'heard')\n"
        "print(b.getsockname()[1] == port, d.recv(5))"
    )
    assert _says(code, settings) == "True b'heard'"


def test_an_address_that_is_none_binds_nowhere(settings: dict[str, str]) -> None:
    wrong = {**settings, "RAYSUITE_BIND": "everywhere"}
    assert "assign requested address" in _says("a = s(); a.bind(('', 0))", wrong)


def test_another_preloaded_library_stays(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Path(settings["LD_PRELOAD"])
    monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    again = binding.variables(ADDRESS, library.parent)
    assert again["LD_PRELOAD"].split() == [str(library), "libm.so.6"]


def test_what_cannot_be_preloaded_is_told_and_closed_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require("compiler")
    (folder := tmp_path / "my node").mkdir()
    assert binding.variables(ADDRESS, folder) == binding.CLOSED
    assert "spaces or colons" in caplog.text


def test_without_a_compiler_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert binding.variables(ADDRESS, tmp_path) == binding.CLOSED
    assert "no C compiler here" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compiler", [True, False])
def test_a_library_of_the_login_node_serves_one_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: bool
) -> None:
    require("compiler")
    made = build(binding.SOURCE, tmp_path)
    if not compiler:
        monkeypatch.setenv("PATH", str(tmp_path))
    assert binding.variables(ADDRESS, tmp_path)["LD_PRELOAD"] == str(made)


@pytest.mark.parametrize("compiler", [True, False])
def test_a_library_without_effect_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: bool
) -> None:
    require("compiler")
    if not compiler:
        monkeypatch.setenv("PATH", str(tmp_path))
    library_in(tmp_path, binding.SOURCE).write_bytes(b"of another machine")
    assert ("LD_PRELOAD" in binding.variables(ADDRESS, tmp_path)) == compiler


def test_the_login_node_compiles_for_a_cluster_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("compiler")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 17\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    asked = Cluster(name="a", site=SlurmSite(), nodes=1, created=1.0, working_folder="/")
    folder = prepare(asked)
    SlurmBackend().start(folder, asked, ("true",))
    assert library_in(folder.path, binding.SOURCE).exists()
