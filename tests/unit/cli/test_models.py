"""`raysuite models`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.cli.models import _gflop
from raysuite.models import cost_of
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.stems import PAPERS_MODELS


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments])


def run(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(text: str) -> dict[str, list[str]]:
    words = [line.split() for line in text.splitlines() if line.startswith(" ")]
    return {row[0]: row[1:] for row in words if row}


@pytest.mark.thorough
def test_the_papers_models_at_the_size_of_mnist() -> None:
    text = run("--size", "28", "--channels", "1", "--classes", "10")
    assert text.startswith("images of 1 x 28 x 28, 10 classes\n")
    table = rows(text)
    assert set(PAPERS_MODELS) <= set(table)
    assert table["resnet18"][:3] == ["ResNet", "small", "11,172,810"]
    assert table["resnet20"][:4] == ["CIFAR", "ResNet", "-", "269,434"]
    assert "multiply-adds of one image's forward pass, each counted once" in text


def test_figures_are_those_of_cost_of() -> None:
    (row,) = json.loads(run("resnet18", "--json"))["models"]
    cost = cost_of(ModelOptions(name="resnet18"), DatasetFacts(0, 0, 1000, 3, 224))
    assert row == {"name": "resnet18", "family": "ResNet", "stem": "large", **vars(cost)}
    _, stem, parameters, gflop, activations, gradients = rows(run("resnet18"))["resnet18"]
    assert (stem, parameters, gflop) == ("large", "11,689,512", "1.814")
    assert float(activations) == pytest.approx(cost.activation_bytes / 2**20, abs=0.05)
    assert float(gradients) == pytest.approx(cost.gradient_bytes / 2**20, abs=0.05)


def test_operations_of_small_networks_have_an_exponent() -> None:
    assert [_gflop(n) for n in (999_999, 1_000_000, 2_500_000_000)] == ["1.0e-03", "0.001", "2.500"]


def test_a_stem_of_ones_choice_where_there_are_two() -> None:
    table = rows(run("resnet18", "resnet20", "alexnet", "--size", "64", "--stem", "large"))
    assert table["resnet18"][1:3] == ["large", "11,689,512"]
    assert table["alexnet"][:2] == ["torchvision", "-"]
    assert rows(run("resnet18", "--size", "64"))["resnet18"][1] == "small"


def test_your_own() -> None:
    shape = ("--size", "8", "--channels", "1", "--classes", "10")
    found = json.loads(run("tests.tiny_model:Tiny", *shape, "--json"))
    assert (found["image_size"], found["channels"], found["classes"]) == (8, 1, 10)
    assert found["models"][0]["parameters"] == 80 + 1290
    assert found["models"][0]["family"] == "own"
