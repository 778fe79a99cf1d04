"""`raysuite data convert`: what it prints, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.cli.data import data
from raysuite.spec import parse_document
from raysuite.spec.data import DataOptions


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for split, count in (("train", 4), ("val", 2)):
        for name in ("ant", "bee"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (9, 7 + number)).save(folder / f"{number}.jpg")
    return tmp_path / "photos"


def test_every_verb_has_help_with_examples() -> None:
    listing = run("--help").stdout
    verbs = [command.name or "" for command in data.registered_commands]
    assert "convert" in verbs
    for verb in verbs:
        assert re.search(rf"^  {verb} ", listing, re.M)
        assert "Examples:" in run(verb, "--help").stdout, f"{verb} --help has no examples"


def test_the_summary_tells_what_lies_there_and_how_to_read_it(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "a: folder, #1"
    result = run("convert", source, target, "--shards", 2, "--workers", 1)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    first, second, spec = result.stdout.splitlines()
    assert first == f"{target}: 3 shards"
    assert second.startswith("8 training and 4 validation images of 2 classes, labels from 0, ")
    options = DataOptions(**parse_document(spec.removeprefix("in a spec: "), "x").data["data"])
    assert (options.path, options.classes) == (str(target), 2)
    again = run("convert", source, target, "--shards", 2)
    assert again.stdout.startswith(f"{target}: nothing to do: all 3 shards are complete\n")


def test_the_summary_as_json(source: Path, tmp_path: Path) -> None:
    result = run("convert", source, tmp_path / "x", "--json", "--workers", 1)
    told = json.loads(result.stdout)
    assert (told["train"], told["val"], told["shards"], told["skipped"]) == (8, 4, 2, [])


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path, as_json: bool) -> None:
    options = ["--json"] if as_json else []
    result = run("convert", source, tmp_path / "x", "--dry-run", "--shards", 4, *options)
    assert result.exit_code == 0
    assert not (tmp_path / "x").exists()
    if as_json:
        assert json.loads(result.stdout)["shards"] == {"train": 4, "val": 2}
    else:
        assert "train: 8 images into 4 shards\nval: 4 images into 2 shards\n" in result.stdout


def test_bad_images_end_with_2_and_skipped_ones_are_listed(source: Path, tmp_path: Path) -> None:
    bad = source / "val" / "bee" / "1.jpg"
    bad.write_text("not a picture")
    result = run("convert", source, tmp_path / "x", "--workers", 1)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: 1 image cannot be read")
    assert str(bad) in result.stderr
    skipped = run("convert", source, tmp_path / "x", "--bad", "skip", "--workers", 1)
    assert skipped.exit_code == 0
    assert f"left out, as they cannot be read: 1\n  {bad}: " in skipped.stdout


def test_no_folder_of_images_ends_with_2(tmp_path: Path) -> None:
    result = run("convert", tmp_path / "nowhere", tmp_path / "x")
    assert result.exit_code == 2
    assert "no folder" in result.stderr
    assert "Traceback" not in result.output
