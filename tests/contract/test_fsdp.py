"""What FSDP is for: a rank keeps its share, and a checkpoint fits any number of ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from raysuite.errors import RunError
from raysuite.parallel.base import read_state
from raysuite.parallel.fsdp import units
from tests.ranks import ranks

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def found(folder: Path, size: int, save: bool, copies: int = 1) -> list[dict[str, Any]]:
    file = folder / f"found-{size}-{save}-{copies}"
    checkpoint = str(folder / "checkpoint")
    request = json.dumps({"folder": checkpoint, "save": save, "copies": copies})
    ranks(size, "tests.contract.fsdp_worker", request, file)
    return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("fsdp")
    return folder, found(folder, 2, save=True)


def test_two_ranks_keep_half_of_weights_and_optimiser(
    saved: tuple[Path, list[dict[str, Any]]],
) -> None:
    for rank in saved[1]:
        assert 0.4 < rank["fsdp"] / rank["ddp"] <= 0.55


@pytest.mark.parametrize(
    ("size", "copies"), [(1, 1), pytest.param(4, 1, marks=pytest.mark.thorough), (4, 2)]
)
def test_a_checkpoint_of_two_ranks_is_resumed_on_others(
    saved: tuple[Path, list[dict[str, Any]]], size: int, copies: int
) -> None:
    folder, expected = saved
    for rank in found(folder, size, save=False, copies=copies):
        assert rank["weights"] < 1e-5
        assert rank["losses"] == pytest.approx(expected[0]["losses"], rel=1e-5)


class Outer:
    class Inner:
        """Pickled by a dotted name."""


@pytest.mark.parametrize("value", [Outer.Inner(), os.getcwd])
def test_a_checkpoint_that_names_other_classes_or_functions_is_refused(
    tmp_path: Path, value: Any
) -> None:
    torch.save({"shards": 1, "model": value}, tmp_path / "engine-0.pt")
    with pytest.raises(RunError):
        read_state(tmp_path / "engine-0.pt", mapped=True)


def test_units_are_residual_blocks() -> None:
    from torchvision.models import mobilenet_v2, resnet50

    from raysuite.models.cifar_resnet import BasicBlock, CifarResNet

    model = CifarResNet(20)
    assert [type(each) for each in units(model, "blocks")] == [BasicBlock] * 9
    assert {type(each).__name__ for each in units(resnet50(), "blocks")} == {"Bottleneck"}
    assert len(units(mobilenet_v2(), "blocks")) == 17
    assert len(units(model, "layers")) == 39
