"""A tiny image, for real: two layers, what they hold and do not hold, and what reaches inside."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysuite.cluster.in_image import launched
from raysuite.images import inspect as verify
from raysuite.images.apptainer import EngineError
from raysuite.images.builder import Built, Order, build
from raysuite.images.inspect import describe
from raysuite.images.recipe import BASE, TOP, Choice, digest
from raysuite.spec.site import LocalSite
from tests.require import require

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
INDEX = "https://user:hush@index.example/simple"
# A root file system of a few of this machine's own programs, and an upper layer as the recipe's.
TEXTS = {
    BASE: """\
Bootstrap: scratch

%setup
    cd "$APPTAINER_ROOTFS"
    mkdir -p bin usr etc tmp mnt proc sys dev root home opt var/tmp
    for program in sh cat cp ls env touch; do
        cp -L "/bin/$program" bin/
        for library in $(ldd "/bin/$program" | grep -o '/[^ )]*'); do
            mkdir -p ".${library%/*}"
            cp -nL "$library" ".$library"
        done
    done

%post
    set -eu
    [ -s /mnt/settings.json ]
""",
    TOP: f"""\
Bootstrap: localimage
From: {BASE}.sif

%files
    context /opt/raysuite

%post
    set -eu
    cp /opt/raysuite/facts.json /etc/raysuite-image.json
    echo kept > /mnt/cache/said
    echo "raysuite.size tiny" >> "$APPTAINER_LABELS"

%environment
    export PYTHONPATH=

%test
    cat /etc/raysuite-image.json
    ls /opt/raysuite/dist
""",
}


def _apptainer(folder: Path) -> Path:
    """A folder with the `apptainer` that the tests call."""
    if os.geteuid() != 0:
        if shutil.which("apptainer") is None:
            require("apptainer")
            pytest.skip("apptainer is not on PATH, and the lab installs it for root alone")
        return folder
    require("apptainer")
    from lab import apptainer

    real = apptainer.install() / "bin" / "apptainer"
    # Root of a container sandbox may lack what Apptainer asks of root: it is told that it is not.
    wrapper = folder / "apptainer"
    wrapper.write_text(
        "#!/bin/sh\n"
        '[ "$1" = build ] && shift && set -- build --ignore-fakeroot-command "$@"\n'
        f'exec unshare --user --map-user=65534 --map-group=65534 {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tests' folder, with Apptainer on PATH and an index with a password in the settings."""
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "bin").mkdir()
        patch.setenv("PATH", f"{_apptainer(folder / 'bin')}:{os.environ['PATH']}")
        patch.setenv("HOME", str(folder))
        patch.setenv("PIP_INDEX_URL", INDEX)
        yield folder


@pytest.fixture(scope="module")
def order(folder: Path) -> Order:
    shelf = folder / "shelf"
    return Order(Choice(), folder / "tiny.sif", ROOT, shelf=shelf, own=TEXTS)


@pytest.fixture(scope="module")
def built(order: Order) -> Built:
    """The image."""
    heard: list[str] = []
    done = build(order, heard.append)
    assert any("Running post scriptlet" in line for line in heard)
    return done


def inside(built: Built, *command: str, **values: str) -> str:
    line = launched(LocalSite(image=str(built.path)), command, ())
    own = {**os.environ, **values}
    done = subprocess.run(line, env=own, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_image_says_what_it_is(built: Built, order: Order) -> None:
    found = describe(built.path)
    assert found.facts["digest"] == built.digest == digest(Choice(), ROOT)
    assert found.labels["raysuite.size"] == "tiny"
    assert found.size_bytes == built.size_bytes < 50e6
    assert set(built.seconds) == {"base", "context", "raysuite"}
    assert verify.recipe(built.path, ROOT).passed
    assert verify.test(built.path).passed


def test_nothing_of_the_building_machine_stays_inside(built: Built, order: Order) -> None:
    assert "hush" not in inside(built, "cat", "/.singularity.d/Singularity")
    assert inside(built, "ls", "-A", "/mnt") == ""
    assert "hush" not in built.log.read_text()
    assert (order.shelf / f"downloads-{order.base.stem}" / "said").read_text() == "kept\n"


def test_the_base_is_used_again(built: Built, order: Order) -> None:
    before = order.base.stat().st_mtime_ns
    again = build(order, lambda line: None)
    assert "base" not in again.seconds
    assert order.base.stat().st_mtime_ns == before


VALUES = {
    "QUOTED": 'it\'s "quoted" `here`',
    "COMMAND": "$(touch canary) ${HOME} `touch canary`",
    "LIST": 'a=1,b=2,"c"',
    "LINES": "one\ntwo = 2\n",
    "SIGNS": "ünïcode → \\n %s ! # ; & | > < * ?",
    "EMPTY": "",
}


def test_values_arrive_as_they_are_and_none_is_run(built: Built, folder: Path) -> None:
    for name, value in VALUES.items():
        said = inside(built, "sh", "-c", f'cat /dev/null; printf %s. "${name}"', **{name: value})
        assert said == f"{value}."
    assert not list(folder.rglob("canary"))


def test_a_foreign_pythonpath_stays_outside(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/a/module")
    monkeypatch.setenv("SLURM_NODEID", "3")
    said = inside(built, "sh", "-c", 'echo "[$PYTHONPATH] $SLURM_NODEID"')
    assert said == "[] 3\n"


def test_a_signature_is_checked_against_its_key(built: Built, folder: Path) -> None:
    for name in ("ours", "theirs"):
        private, public = folder / f"{name}.pem", folder / f"{name}-public.pem"
        generate = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)]
        subprocess.run(generate, check=True, capture_output=True)
        publish = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
        subprocess.run(publish, check=True, capture_output=True)
    assert not verify.signature(built.path, folder / "ours-public.pem").passed
    verify.sign_image(built.path, folder / "ours.pem")
    assert verify.signature(built.path, folder / "ours-public.pem").passed
    assert not verify.signature(built.path, folder / "theirs-public.pem").passed
    with pytest.raises(EngineError, match="apptainer sign"):
        verify.sign_image(built.path, folder / "ours-public.pem")


def test_a_failing_post_is_told_with_its_last_lines(order: Order, built: Built) -> None:
    broken = TEXTS[TOP].replace("set -eu", "set -eu\n    echo this is wrong\n    exit 7")
    own = {BASE: TEXTS[BASE], TOP: broken}
    out = order.out.with_name("broken.sif")
    with pytest.raises(EngineError, match="this is wrong"):
        build(dataclasses.replace(order, own=own, out=out), lambda line: None)
    assert not out.exists()
