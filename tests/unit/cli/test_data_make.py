"""`raysuite data make`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_DATA", str(tmp_path / "sets"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_it_says_what_was_made_where_a_spec_looks_for_it(tmp_path: Path) -> None:
    made = run("make", "mnist", "--images", "40", "--workers", "1")
    assert made.stdout.startswith(
        f"{tmp_path}/sets/mnist-idx: 40 training and 10 validation images of 10 classes, "
        "28 x 28 grey, as idx, "
    )
    assert "images/s" in made.stdout
    assert made.stderr == ""
    again = run("make", "mnist", "--images", "40")
    assert "nothing was written" in again.stdout
    (tmp_path / "spec.yaml").write_text(
        "name: x\nmodel: resnet20\ndata: mnist\ntraining: {epochs: 1, global_batch: 20}\n"
    )
    (plan,) = json.loads(
        CliRunner().invoke(app, ["plan", str(tmp_path / "spec.yaml"), "--json"]).stdout
    )
    assert plan["steps_per_epoch"] == 2


def test_classes_that_are_left_out_are_told(tmp_path: Path) -> None:
    made = run("make", "imagenet", "--images", "30", "--size", "24x16", "--workers", "1")
    assert "3 of imagenet's 1,000 classes" in made.stdout
    assert "24 x 16 RGB" in made.stdout


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    told = run("make", "mnist", "--dry-run").stdout
    assert told == (
        f"{tmp_path}/sets/mnist-idx: 60,000 training and 10,000 validation images of 10 classes, "
        "28 x 28 grey, as idx, about 52.4 MiB\n"
    )
    plan = json.loads(run("make", "cifar10", "--fraction", "0.1", "--dry-run", "--json").stdout)
    assert (plan["train"], plan["val"], plan["form"]) == (5000, 1000, "binary")
    assert plan["bytes"] == 6000 * 3073
    assert not (tmp_path / "sets").exists()


def test_json_tells_what_lies_there(tmp_path: Path) -> None:
    words = ("make", "cifar10", "--images", "20", "--out", tmp_path / "c", "--workers", "1")
    first, again = (json.loads(run(*words, "--json").stdout) for _ in range(2))
    assert first["path"] == str(tmp_path / "c")
    assert (first["images"], first["drawn"], again["drawn"]) == (30, 30, 0)
    assert first["images_per_s"] > 0
    assert again["images_per_s"] is None
    assert again["digest"] == first["digest"]
    assert first["synthetic"]["seed"] == 0


@pytest.mark.parametrize("form", ["folder", "tfrecord"])
def test_what_was_made_is_found_in_order(tmp_path: Path, form: str) -> None:
    words = ("--images", "20", "--size", "48x32", "--format", form, "--workers", "1")
    run("make", "imagenet", *words, "--out", tmp_path / "set")
    run("check", tmp_path / "set", "--name", "imagenet", "--format", form, "--workers", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["minst"], "'minst'"),
        (["mnist", "--size", "big"], "such as 64, or 500x375"),
        (["mnist", "--format", "tfrecords"], "folder or tfrecord"),
        (["mnist", "--address", "auto"], "may"),
    ],
)
def test_bad_input_exits_with_2(words: list[str], message: str) -> None:
    result = run("make", *words, code=2)
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_another_set_in_the_way_exits_with_2() -> None:
    run("make", "mnist", "--images", "20", "--workers", "1")
    other = ("make", "mnist", "--images", "30", "--workers", "1")
    assert "--force replaces it" in run(*other, code=2).stderr
    assert "30 training" in run(*other, "--force").stdout
