"""Networks of Hugging Face and timm, small and with random weights, are trained for a task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raysuite import models
from raysuite.records import EpochFinished, GateVerdict
from raysuite.train.trial_batch import mistakes
from tests.pages import blocks
from tests.require import require
from tests.task_sets import BATCH, Samples, plain
from tests.unit.tasks.conftest import plan_of, run


def test_a_network_of_transformers_is_trained_as_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The how-to's example, whose first and last layer share a matrix."""
    require("transformers")
    code = next(each for each in blocks("own-task.md", "python") if "transformers" in each)
    (tmp_path / "my_gpt2.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    # its dropout would draw other numbers in the two loops
    model = {"name": f"{__name__}:without_dropout"}
    plan = plan_of("language_model", tmp_path, model=model)
    assert mistakes(plan) == []
    torch.manual_seed(plan.seed)
    network = models.build(plan.spec.model, plan.dataset)
    expected = plain("language_model", tmp_path, network, plan.seed)
    records = run(plan)
    (verdict,) = (each for each in records if isinstance(each, GateVerdict))
    assert verdict.passed
    epochs = [each for each in records if isinstance(each, EpochFinished)]
    assert [loss for each in epochs for loss in each.losses] == pytest.approx(expected, rel=1e-5)


def without_dropout(num_classes: int, sequence: int) -> torch.nn.Module:
    from my_gpt2 import Gpt2  # type: ignore[import-not-found]

    network: torch.nn.Module = Gpt2(num_classes, sequence)
    for each in network.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    return network


def pictures(split: str) -> Samples:
    """[3, 32, 32] -> [4] of 0 and 1: where it is bright."""

    def one(draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.randn(3, 32, 32, generator=draw)
        bright = torch.rand(4, generator=draw) > 0.5
        image[0].view(4, 8, 32)[bright] += 2.0
        return image, bright.float()

    return Samples(split, one)


def test_a_network_of_timm_learns_several_labels(tmp_path: Path) -> None:
    require("timm")
    plan = plan_of(
        "multi_label",
        tmp_path,
        data={"name": f"{__name__}:pictures"},
        model={"name": "timm:test_vit", "options": {"num_classes": 4, "img_size": 32}},
        optimizer={"name": "adamw", "lr": 3e-3},
        training={"epochs": 8, "global_batch": BATCH},
    )
    assert mistakes(plan) == []
    first, *_, last = (each for each in run(plan) if isinstance(each, EpochFinished))
    assert last.train_loss < 0.7 * first.train_loss
