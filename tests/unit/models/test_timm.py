"""timm's models, where timm is installed, and what is said where it is not."""

from __future__ import annotations

import sys

import pytest
import torch

from raysuite.errors import MissingPartError, UserError
from raysuite.models import build, check, cost_of
from raysuite.spec.datasets import DIGITS, DatasetFacts
from raysuite.spec.experiment import ModelOptions
from tests.require import require


def facts(size: int, channels: int = 3) -> DatasetFacts:
    return DatasetFacts(1, 1, 5, channels, size)


@pytest.mark.parametrize(
    ("name", "size", "channels"),
    [
        ("resnet18", 32, 1),
        ("resnet50.a1_in1k", 96, 3),
        ("vit_tiny_patch16_224", 48, 3),  # its position embedding is made for one size
        ("swin_tiny_patch4_window7_224", 224, 3),
    ],
)
def test_logits(name: str, size: int, channels: int) -> None:
    require("timm")
    with torch.device("meta"):
        model = build(ModelOptions(name=f"timm:{name}"), facts(size, channels)).train()
        assert model(torch.zeros(2, channels, size, size)).shape == (2, 5)


def test_options_come_first_and_gradients_flow() -> None:
    require("timm")
    options = {"num_classes": 3, "stem_type": "deep", "stem_width": 8}
    model = build(ModelOptions(name="timm:resnet18", options=options), DIGITS).train()
    logits = model(torch.rand(2, 1, 8, 8))
    assert logits.shape == (2, 3)
    logits.logsumexp(1).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_same_network_costs_the_same() -> None:
    require("timm")
    imagenet = DatasetFacts(1, 1, 1000, 3, 224)
    theirs = cost_of(ModelOptions(name="resnet50"), imagenet)
    assert cost_of(ModelOptions(name="timm:resnet50"), imagenet) == theirs


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:resnt18", r"did you mean resnet18"),
        ("timm:xyzzy", r"'xyzzy'"),
        ("timm:resnet18.nope", r"[Tt]ag.*nope.*timm:resnet18$"),
    ],
)
def test_names_that_timm_does_not_know(name: str, words: str) -> None:
    require("timm")
    for look in (check, lambda name: build(ModelOptions(name=name), DIGITS)):
        with pytest.raises(UserError, match=words):
            look(name)


def test_options_that_timm_does_not_know() -> None:
    require("timm")
    with pytest.raises(UserError, match=r"'timm:resnet18' cannot be made: .*TypeError.*depht"):
        build(ModelOptions(name="timm:resnet18", options={"depht": 3}), DIGITS)


@pytest.mark.integration
def test_without_timm_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # an import of it fails as if it were not there
    with pytest.raises(MissingPartError, match=r"not installed(?s:.*)make setup"):
        check("timm:resnet18")
