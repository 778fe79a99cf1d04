"""What the building machine lends, and where it is taken from."""

import json
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.images.builder import LENT, MIRROR_VARIABLE, debian_mirror, lend, pip_settings


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = (MIRROR_VARIABLE, "UV_DEFAULT_INDEX", "PIP_INDEX_URL", "PIP_CERT", "PIP_CONFIG_FILE")
    for name in (*names, "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


DEB822 = """\
Types: deb
# http://old.example/archive/debian/2025
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list.d/debian.sources", DEB822, "http://mirror.example/debian"),
        (
            "sources.list",
            "deb https://m.example/debian/ bookworm main",
            "https://m.example/debian/",
        ),
        (
            "sources.list",
            "deb http://security.example/ubuntu x\ndeb http://a.example/debian x\n"
            "deb http://b.example/debian x",
            "http://a.example/debian",
        ),
        (
            "sources.list.d/a.list",
            "deb [arch=amd64 signed-by=/k] http://m.example/a/debian trixie main",
            "http://m.example/a/debian",
        ),
    ],
)
def test_the_mirror_is_the_one_of_this_machines_apt(
    tmp_path: Path, name: str, text: str, expected: str
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert debian_mirror(apt=tmp_path) == expected


def test_what_is_given_wins_over_the_variable_and_that_over_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources.list").write_text("deb http://apt.example/debian bookworm main")
    monkeypatch.setenv(MIRROR_VARIABLE, "http://variable.example/d")
    assert debian_mirror(apt=tmp_path) == "http://variable.example/d"
    assert debian_mirror("file:///srv/d", apt=tmp_path) == "file:///srv/d"


@pytest.mark.parametrize(
    "text", ["", "deb http://u.example/ubuntu noble main", "# deb http://m.example/debian x"]
)
def test_no_mirror_is_said_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "sources.list").write_text(text)
    with pytest.raises(UserError, match="--mirror URL"):
        debian_mirror(apt=tmp_path)
    with pytest.raises(UserError, match="be an address"):
        debian_mirror("mirror", apt=tmp_path)
    with pytest.raises(UserError, match="a URL"):
        debian_mirror("http://mirror.example/my debian", apt=tmp_path)


def test_pips_variables_win_over_its_files(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://file.example/simple\ncert = /c.pem\n")
    environment = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(file)}
    assert pip_settings(environment)["index-url"] == "https://file.example/simple"
    environment["PIP_INDEX_URL"] = "https://variable.example/simple"
    found = pip_settings(environment)
    assert found == {"index-url": "https://variable.example/simple", "cert": "/c.pem"}


def test_the_last_of_pips_files_wins(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    for name in (".pip/pip.conf", ".config/pip/pip.conf", "own.conf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"[global]\nindex-url = https://{name}\n")
        if name == "own.conf":
            environment["PIP_CONFIG_FILE"] = str(tmp_path / name)
        assert pip_settings(environment)["index-url"] == f"https://{name}"


def test_apts_proxies_are_lent_and_what_is_missing_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "apt-config"
    program.write_text(
        """#!/bin/sh
echo 'Acquire::http::Proxy "http://a:1";'
echo 'Acquire::https::Proxy::m.example "DIRECT";'
echo 'Acquire::http::Timeout "9";'
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (folder := tmp_path / "lent").mkdir()
    lend(folder)
    settings = json.loads((folder / "settings.json").read_text())
    assert not {"SSL_CERT_FILE", "http_proxy", "https_proxy"} & settings.keys()
    assert not (folder / "certificates.pem").exists()
    assert (folder / "apt.conf").read_text().splitlines() == [
        'Acquire::http::Proxy "http://a:1";',
        'Acquire::https::Proxy::m.example "DIRECT";',
    ]
    program.write_text("#!/bin/sh\n")
    (other := tmp_path / "other").mkdir()
    lend(other)
    assert [each.name for each in other.iterdir()] == ["settings.json"]


def test_pips_section_of_install_wins_over_the_global_one(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    addresses = {name: f"https://{name}.example/simple" for name in ("install", "global")}
    file.write_text("".join(f"[{name}]\nindex-url = {at}\n" for name, at in addresses.items()))
    environment = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(file)}
    assert pip_settings(environment)["index-url"] == addresses["install"]


def test_settings_are_lent_with_the_certificates_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_text("PEM")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:word@index.example/simple")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    folder = tmp_path / "lent"
    folder.mkdir(mode=0o700)
    lend(folder)
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["UV_DEFAULT_INDEX"] == "https://user:word@index.example/simple"
    assert settings["https_proxy"] == "http://proxy.example:3128"
    assert settings["SSL_CERT_FILE"] == settings["PIP_CERT"] == f"{LENT}/certificates.pem"
    assert (folder / "certificates.pem").read_text() == "PEM"


def test_uvs_index_and_openssls_certificates_win_over_pips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, variable in (("own", "SSL_CERT_FILE"), ("pips", "PIP_CERT")):
        (tmp_path / name).write_text(name)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    (folder := tmp_path / "lent").mkdir()
    lend(folder)
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["UV_DEFAULT_INDEX"] == settings["PIP_INDEX_URL"] == "https://uv.example/simple"
    assert (folder / "certificates.pem").read_text() == "own"
