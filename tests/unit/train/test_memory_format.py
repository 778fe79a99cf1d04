from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysuite.parallel.base import World
from raysuite.parallel.precision import Autocast
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished
from raysuite.spec import Document
from raysuite.train.building import build_model, set_torch
from tests.unit.train.conftest import plan_of, run

CPU = torch.device("cpu")


class TwoConvs(nn.Sequential):
    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 16, num_classes),
        )


def small_cnn(**changes: Any) -> RunPlan:
    return plan_of(model={"name": "resnet20"}, training_epochs=1, optimizer_lr=0.01, **changes)


def without_norm(**changes: Any) -> RunPlan:
    """BatchNorm over small images amplifies roundings from step to step."""
    model = {"name": "tests.unit.train.test_memory_format:TwoConvs"}
    return plan_of(model=model, training_epochs=1, **changes)


@pytest.mark.parametrize(
    ("device", "precision", "given", "expected"),
    [
        ("gpu", "bf16", "auto", "channels_last"),
        ("gpu", "fp16", "auto", "channels_last"),
        ("gpu", "fp32", "auto", "contiguous"),
        ("cpu", "bf16", "auto", "contiguous"),
        ("gpu", "bf16", "contiguous", "contiguous"),
        ("cpu", "fp32", "channels_last", "channels_last"),
    ],
)
def test_what_auto_becomes(device: str, precision: str, given: str, expected: str) -> None:
    data = {
        "name": "unit",
        "model": "resnet20",
        "data": "digits",
        "training": {
            "epochs": 1,
            "global_batch": 240,
            "precision": precision,
            "memory_format": given,
        },
        "resources": {"device": device},
    }
    plan = make_plans(Document(data, "test"), gpus=1)[0]
    assert plan.model_dump(mode="json")["memory_format"] == expected


def test_images_and_convolutions_have_the_format() -> None:
    plan = small_cnn(training_memory_format="channels_last")
    model = build_model(plan, World(0, 1, 0, CPU))
    wide = [each for each in model.modules() if isinstance(each, nn.Conv2d)][1:]
    assert all(each.weight.is_contiguous(memory_format=torch.channels_last) for each in wide)
    assert not all(each.weight.is_contiguous() for each in wide)
    seen: list[Tensor] = []

    class Seeing(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(images)
            return images.flatten(1)

    Autocast(Seeing(), "fp32", CPU, "channels_last")(torch.randn(2, 3, 8, 8))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_batches_come_in_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    forward = Autocast.forward

    def seeing(self: Autocast, images: Tensor) -> Tensor:
        if images.shape[1] == 3:  # the run's; the gate's are grey
            given.append(images.is_contiguous(memory_format=torch.channels_last))
        return forward(self, images)

    monkeypatch.setattr(Autocast, "forward", seeing)
    for name in ("contiguous", "channels_last"):
        data = {"name": "digits", "channels": 3}
        run(without_norm(training_memory_format=name, data=data, loader={"name": "synthetic"}))
        assert set(given) == {name == "channels_last"}
        given.clear()


def test_both_formats_train_alike_and_leave_the_same_file(tmp_path: Path) -> None:
    losses, states = {}, {}
    for name in ("contiguous", "channels_last"):
        file = tmp_path / f"{name}.pt"
        records = run(without_norm(training_memory_format=name), model_file=file)
        (epoch,) = [each for each in records if isinstance(each, EpochFinished)]
        losses[name] = [*epoch.losses, epoch.val_loss]
        states[name] = torch.load(file, weights_only=True)
    assert losses["channels_last"] == pytest.approx(losses["contiguous"], rel=1e-5)
    one, other = states["channels_last"], states["contiguous"]
    assert one.keys() == other.keys()
    assert all(each.is_contiguous() for state in (one, other) for each in state.values())


def test_autotuning_is_as_the_run_asks() -> None:
    try:
        for asked in (True, False):
            set_torch(small_cnn(training_cudnn_benchmark=asked))
            assert torch.backends.cudnn.benchmark is asked
    finally:
        torch.backends.cudnn.benchmark = False
