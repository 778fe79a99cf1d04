"""`raysuite data check`: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app
from tests import small_sets


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", "check", *map(str, arguments), "--workers", "1"])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    small_sets.write("imagenet-tfrecord", tmp_path / "set")
    return tmp_path / "set"


def spec(folder: Path, *blocks: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(
        "name: x\nmodel: resnet20\ntraining: {epochs: 1, batch_per_worker: 4}\n"
        f"data: {blocks[0]}\nmatrix: {{data: [{', '.join(blocks)}], seed: [1, 2]}}\n"
    )
    return path


def test_a_sound_set(shards: Path) -> None:
    result = run(shards)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.startswith(f"{shards}: tfrecord\n")
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["train"][1:4] == ["23", "0", "3"]
    assert rows["val"][1:4] == ["9", "0", "3"]
    assert result.stdout.endswith("nothing is wrong\n")


def test_what_is_wrong_is_told_with_its_place(shards: Path) -> None:
    path = shards / "train-00001-of-00003"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    result = run(shards, "--no-decode")
    assert result.exit_code == 1
    assert f"1 wrong:\n  {path} at byte 0: the checksum of the record's data" in result.stdout
    told = json.loads(run(shards, "--json").stdout)
    assert (told["ok"], told["errors"]) == (False, 1)
    (finding,) = (each for each in told["findings"] if not each["note"])
    assert (finding["place"], finding["offset"], finding["kind"]) == (str(path), 0, "record")
    assert told["splits"]["val"]["images"] == 9


def test_long_lists_are_cut(shards: Path) -> None:
    for path in (shards / "idx_files").iterdir():
        path.unlink()
    result = run(shards, "--limit-shown", 2)
    assert result.exit_code == 1
    assert "6 wrong:\n" in result.stdout
    assert result.stdout.count("there is no index") == 2
    assert "  and 4 more; --limit-shown or --json shows them\n" in result.stdout
    assert run(shards, "--write-index").exit_code == 0
    assert run(shards).exit_code == 0


def test_the_sets_of_a_spec(shards: Path, tmp_path: Path) -> None:
    small_sets.write("mnist-idx", tmp_path / "mnist")
    blocks = (
        f"{{name: imagenet, format: tfrecord, path: {shards}}}",
        f"{{name: mnist, path: {tmp_path / 'mnist'}}}",
    )
    told = json.loads(run(spec(tmp_path, *blocks), "--json").stdout)
    assert [each["form"] for each in told] == ["tfrecord", "idx"]
    assert [each["splits"]["train"]["images"] for each in told] == [23, 23]


def test_a_named_set_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_DATA", str(tmp_path))
    small_sets.write("cifar10-pickle", tmp_path / "cifar10-pickle")
    result = run("cifar10", "--format", "pickle")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "cifar10-pickle") in result.stdout
    missing = run("cifar10")
    assert missing.exit_code == 1
    assert "raysuite data make cifar10" in missing.stdout


def test_stated_names(tmp_path: Path) -> None:
    small_sets.write("imagenet-folder", tmp_path)
    (tmp_path / "val" / small_sets.SYNSETS[0]).rename(tmp_path / "away")
    assert run(tmp_path).exit_code == 1
    # of ImageNet, validation may lack classes: synthetic sets are small
    assert run(tmp_path, "--name", "imagenet").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "give a folder"),
        (("nowhere.yaml",), "nowhere.yaml"),
        ((".", "--name", "minst"), "'mnist'"),
        ((".", "--name", "mnist", "--format", "binary"), "'binary'"),
        (("nowhere", "--name", "mnist"), "no folder"),
    ],
)
def test_bad_usage_ends_with_2(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("", {}),
        ("negative", {"file": 1}),
        ("lacking", {"image": 2}),
        ("float", {"image": 2}),
        ("four", {"image": 2}),
        ("half", {"image": 2}),
        ("label", {"label": 2}),
        ("below", {"label": 2}),
    ],
)
def test_ones_own_set(fault: str, wrong: dict[str, int], tmp_path: Path) -> None:
    block = f"{{name: 'tests.odd_sets:Odd', image_size: 8, options: {{fault: '{fault}'}}}}"
    result = run(spec(tmp_path, block), "--json", "--workers", 1)
    told = json.loads(result.stdout)
    assert Counter(each["kind"] for each in told["findings"] if not each["note"]) == wrong
    assert result.exit_code == (1 if wrong else 0)
    if fault != "negative":
        bad = wrong.get("image", 0) // 2
        assert [told["splits"][each]["unreadable"] for each in ("train", "val")] == [bad, bad]
        assert told["splits"]["train"]["images"] == 12


@pytest.mark.parametrize("fault", ["drawn", "drawn_label"])
def test_samples_that_are_not_the_same_each_time(fault: str, tmp_path: Path) -> None:
    block = f"{{name: 'tests.odd_sets:Odd', image_size: 8, options: {{fault: {fault}}}}}"
    result = run(spec(tmp_path, block), "--json", "--workers", 1)
    assert result.exit_code == 1
    assert "another one" in json.loads(result.stdout)["findings"][0]["message"]


def test_ones_own_set_by_its_name() -> None:
    assert run("tests.odd_sets:Odd", "--workers", 1).exit_code == 0
    assert run("tests.odd_sets:Nowhere").exit_code == 1
    assert run("tests.odd_sets:Odd", "--format", "idx").exit_code == 2
