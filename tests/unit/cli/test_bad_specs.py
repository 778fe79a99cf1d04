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


def write(folder: Path, text: str) -> Path:
    file = folder / "bad.yaml"
    file.write_text(LEAST + text + "\n", "utf-8")
    return file


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


@pytest.mark.parametrize("words", [["run"], ["bench", "batch"], ["plan"], ["plan", "--gpus", "0"]])
def test_what_this_machine_lacks_is_named_beside_what_is_infeasible(
    tmp_path: Path, words: list[str]
) -> None:
    file = write(tmp_path, "strategy: ddp\nresources: {workers: 3}")  # no equal shares of 8
    network = "model={name: 'nomod:Net', weights: absent.pt}"
    result = CliRunner().invoke(app, [*words, str(file), network])
    here = {"model.name", "model.weights"} if "--gpus" not in words else set()
    assert result.exit_code == 2
    found = re.findall(r"^  .*?: ([a-z_.]+): ", result.stderr, re.M)
    assert set(found) == {"training.global_batch"} | here


def test_the_same_mistake_of_several_rows_is_told_once(tmp_path: Path) -> None:
    rows = "\n".join(f"    - [{workers}, horovd]" for workers in (1, 2, 4))
    file = write(tmp_path, f"matrix:\n  resources.workers, strategy:\n{rows}")
    result = CliRunner().invoke(app, ["plan", str(file)])
    heading, message = result.stderr.splitlines()
    assert heading == "error: 1 mistake"
    assert message.startswith(f"  {file}:9, 10, 11: strategy: ")


def test_a_mistake_of_the_command_line_is_attributed_to_it(tmp_path: Path) -> None:
    file = write(tmp_path, "matrix:\n  strategy: [ddp, fsdp]\nstrategy: {name: ddp}")
    for override in ("matrix.strategy=[dpp]", "strategy={name: dpp}", "strategy=dpp"):
        result = CliRunner().invoke(app, ["plan", str(file), override])
        message = result.stderr.splitlines()[1]
        assert message.startswith("  command line: strategy: no strategy is called 'dpp'")


def test_a_plan_names_all_that_a_run_here_would_refuse(tmp_path: Path) -> None:
    file = write(tmp_path, "resources: {workers: 1000}\nstrategy: ddp")
    given = ["plan", str(file), "training.batch_per_worker=1", "training.global_batch=null"]
    given += ["model=absent_module:Net"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    model, workers = result.stderr.splitlines()[1:]
    assert model.startswith("  command line: model.name: 'absent_module:Net' cannot be imported")
    assert workers.startswith(f"  {file}:7: resources.workers: 1000 workers x 1 CPU each need 1000")
    assert "this machine has" in workers
    assert CliRunner().invoke(app, [*given, "--gpus", "0"]).exit_code == 0
    joined = CliRunner(env={"RAY_ADDRESS": "10.0.0.1:6379"}).invoke(app, given[:-1])
    assert joined.exit_code == 0


def test_a_sweep_that_an_override_ends_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "matrix:\n  strategy: [ddp, fsdp]")
    ended = "strategy=single on the command line replaces the matrix's 2 values of strategy\n"
    assert CliRunner().invoke(app, ["plan", str(file), "strategy=single"]).stdout.endswith(ended)
    other = CliRunner().invoke(app, ["plan", str(file), "matrix.strategy=[ddp]"])
    assert "replaces" not in other.output


def test_aliases_that_unfold_to_billions_of_values(tmp_path: Path) -> None:
    lines = [f"  k0: &a0 {[1] * 9}"]
    lines += [f"  k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    file = write(tmp_path, "model: \n" + "\n".join(lines))
    result = CliRunner().invoke(app, ["plan", str(file)])
    assert result.exit_code == 2
    assert "100,000 keys and values" in result.stderr


def test_a_leading_zero_is_no_octal_number(tmp_path: Path) -> None:
    assert read_document(write(tmp_path, "seed: 010"), ["repeats=011"]).data["seed"] == 10


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
