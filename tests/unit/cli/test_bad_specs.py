"""Bad specs through the console entry: one clear block on stderr, exit code 2, no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.spec import read_document

LEAST = """\
name: a
model: resnet20
data: digits
training:
  epochs: 1
  global_batch: 8
"""

WIDE = ("seed", "resources.retries", "training.epochs", "measure.warmup_steps", "optimizer.lr")
BAD = [
    pytest.param("stratgy: ddp", 7, "stratgy", ["unknown key", "'strategy'"], id="unknown key"),
    pytest.param("seed: five", 7, "seed", ["given was 'five'", "valid integer"], id="wrong type"),
    pytest.param(
        "strategy: horovd",
        7,
        "strategy",
        ["'horovd'", "did you mean 'horovod'?", "valid are single, ddp, horovod, deepspeed"],
        id="misspelt strategy",
    ),
    pytest.param(
        LEAST.replace("batch: 8", "batch: 0"),
        6,
        "training.global_batch",
        ["given was 0", "greater than or equal to 1"],
        id="batch 0",
    ),
    pytest.param(
        "optimizer: {lr: -0.1}",
        7,
        "optimizer.lr",
        ["given was -0.1", "greater than 0"],
        id="negative learning rate",
    ),
    pytest.param(
        LEAST.replace("digits", "{name: image_folder, image_size: 8, path: /no/such/folder}"),
        3,
        "data.path",
        ["no folder /no/such/folder", "expected is PATH/train/CLASS"],
        id="missing data set",
    ),
    pytest.param(
        "strategy: ddp\nresources:\n  workers: 4\n  device: gpu",
        10,
        "resources.device",
        ["4 workers need 4 GPUs", "there are 0"],
        id="more workers than GPUs",
    ),
    pytest.param(
        "matrix:\n  stratgy: [ddp]",
        8,
        "matrix.stratgy",
        ["unknown key", "did you mean 'strategy'?"],
        id="matrix over an unknown key",
    ),
    pytest.param(
        LEAST.replace("epochs: 1", "epochs: true"),
        5,
        "training.epochs",
        ["given was 'true'", "valid integer"],
        id="a truth in the place of a number",
    ),
    pytest.param(f"seed: 1{'0' * 23}", 7, "seed", ["less than"], id="a seed that torch refuses"),
    pytest.param(
        "repeats: 1000000000", 7, "repeats", ["1,000,000,000 runs"], id="a billion repeats"
    ),
    pytest.param(
        "\n".join(["matrix:", *(f"  {key}: {list(range(1, 101))}" for key in WIDE)]),
        7,
        "matrix",
        ["10,000,000,000 runs"],
        id="a matrix of ten billion runs",
    ),
    pytest.param(
        "matrix: {seed: [3, 3]}", 7, "matrix", ["seed=3 is there twice"], id="equal seeds"
    ),
    pytest.param(
        "matrix: {strategy: [ddp, {name: ddp, bucket_mb: 5}], strategy.bucket_mb: [1]}",
        7,
        "matrix",
        ["is the same run as"],
        id="a block that sets what another line sweeps",
    ),
    pytest.param("loader: [native", 8, "", ["is not valid YAML"], id="YAML syntax"),
    pytest.param(
        LEAST.replace("resnet20", "'my.models:'"),
        2,
        "model.name",
        ["'my.models:' is not an import path", "'module:attribute'"],
        id="model that is no import path",
    ),
    pytest.param(
        "resources: {workers: 2}",
        7,
        "resources.workers",
        ["'single' is one process", "given were 2", "set strategy to ddp"],
        id="one process with two workers",
    ),
]


def write(folder: Path, text: str) -> Path:
    file = folder / "bad.yaml"
    file.write_text(text if text.startswith("name:") else LEAST + text + "\n", "utf-8")
    return file


@pytest.mark.parametrize(("text", "line", "key", "words"), BAD)
def test_one_mistake_one_clear_message(
    tmp_path: Path, text: str, line: int, key: str, words: list[str]
) -> None:
    file = write(tmp_path, text)
    result = CliRunner().invoke(app, ["plan", str(file), "--gpus", "0"])
    assert result.exit_code == 2
    assert result.stdout == ""
    heading, message = result.stderr.splitlines()
    assert heading == "error: 1 mistake"
    assert message.startswith(f"  {file}:{line}: {key}")
    assert [word for word in words if word not in message] == []


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "seed: five\nstrategy: horovd\nmatrix:\n  lr: [1]\n")
    result = CliRunner().invoke(app, ["plan", str(file), "training.epoch=3", "repeats=0"])
    assert result.exit_code == 2
    heading, *messages = result.stderr.splitlines()
    assert heading == "error: 5 mistakes"
    places = [re.match(r"  (.*?): (\S+):", message) for message in messages]
    assert [place.groups() for place in places if place] == [
        ("command line", "repeats"),
        ("command line", "training.epoch"),
        (f"{file}:7", "seed"),
        (f"{file}:8", "strategy"),
        (f"{file}:10", "matrix.lr"),
    ]


def test_aliases_that_unfold_to_billions_of_values(tmp_path: Path) -> None:
    lines = [f"  k0: &a0 {[1] * 9}"]
    lines += [f"  k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    file = write(tmp_path, "model: \n" + "\n".join(lines))
    result = CliRunner().invoke(app, ["plan", str(file)])
    assert result.exit_code == 2
    assert "100,000 values" in result.stderr


def test_a_leading_zero_is_no_octal_number(tmp_path: Path) -> None:
    assert read_document(write(tmp_path, "seed: 010"), ["repeats=011"]).data["seed"] == 10


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "none.yaml: cannot be" in result.stderr


@pytest.mark.integration
def test_the_same_through_the_real_entry(tmp_path: Path) -> None:
    file = write(tmp_path, "strategy: horovd")
    found = subprocess.run(
        [sys.executable, "-m", "raysuite", "plan", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 2
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    assert found.stderr.startswith("error: 1 mistake\n")
