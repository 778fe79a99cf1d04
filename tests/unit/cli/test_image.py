"""`raysuite image`: what is printed without Apptainer, and the messages for mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.cli.image import _choice
from raysuite.images.recipe import EXTRAS, Variant

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _a_program_called_apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("apptainer", "debootstrap"):
        (folder / name).write_text("#!/bin/sh\nexit 9\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path / "cache"))


def image(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["image", *map(str, arguments)])


def test_extras_are_all_some_or_none() -> None:
    some = ("horovod", "deepspeed")
    extras = {None: EXTRAS, "none": (), "horovod, deepspeed": some, "horovod": some[:1]}
    assert {given: _choice(Variant.CUDA, given).extras for given in extras} == extras
    assert _choice(Variant.CUDA, None).variant is Variant.CUDA


def test_a_dockerfile_stands_beside_what_it_copies(tmp_path: Path) -> None:
    done = image("build", tmp_path / "new", "--dockerfile", "--variant", "cuda", "--extras", "none")
    assert done.exit_code == 0, done.output
    assert "FROM nvidia/cuda:" in (tmp_path / "new/Dockerfile").read_text()
    assert list((tmp_path / "new/context/dist").glob("raysuite-*.whl"))
    assert not (tmp_path / "new/context/containers/requirements/horovod.txt").exists()


def test_a_dry_run_prints_files_and_commands_and_builds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "r.sif"
    done = image("build", out, "--dry-run", "--mirror", "http://m.example/debian")
    assert done.exit_code == 0, done.output
    assert (ROOT / "containers/raysuite.def").read_text() in done.stdout
    commands = [line for line in done.stdout.splitlines() if "apptainer build" in line]
    assert len(commands) == 2
    assert "--build-arg mirror=http://m.example/debian" in commands[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_verify_exits_with_1_for_the_image_of_another_checkout(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    facts = json.dumps({"variant": "cpu", "extras": [], "arch": "amd64", "digest": "0" * 64})
    labels = '{"data": {"attributes": {}}}'
    answers = f"case $1 in inspect) echo '{labels}';; *) echo '{facts}';; esac"
    (tmp_path / "bin/apptainer").write_text(f"#!/bin/sh\n{answers}\n")
    (tmp_path / "other.sif").touch()
    done = image("verify", tmp_path / "other.sif", "--no-test", *words)
    assert done.exit_code == 1, done.output
    if words:
        [check] = json.loads(done.stdout)
        assert (check["name"], check["passed"]) == ("recipe", False)
    else:
        assert done.stdout.startswith("FAILED  recipe: digest 0000000000000000, ")
