"""Known architectures are trained, averaged and kept as by a plain loop in torch, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysuite.data.base import Batch
from raysuite.models import build
from raysuite.optim.average import WeightAverage
from raysuite.parallel.base import StepSettings, World, whole_state
from raysuite.parallel.single import Single
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

NAMES = (
    *("resnet20", "resnet18", "vgg11_bn", "mobilenet_v2", "densenet121", "squeezenet1_0"),
    *("shufflenet_v2_x0_5", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "swin_t"),
    *("vit_b_16", "googlenet"),
)
STEPS, BATCH, LR, DECAY = 3, 4, 0.01, 0.8
FACTS = DatasetFacts(STEPS * BATCH, BATCH, 10, 3, 64)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(STEPS * BATCH, 3, 64, 64, generator=generator)
    return images, torch.randint(0, 10, (STEPS * BATCH,), generator=generator)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build(ModelOptions(name=name), FACTS).train()


def plain(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state in the end, and the average of the states after each step."""
    model = network(name)
    optimizer = torch.optim.SGD(model.parameters(), LR, 0.9)
    average: dict[str, Any] = {}
    torch.manual_seed(5)  # of dropout
    for images, labels in zip(*(each.split(BATCH) for each in data()), strict=True):
        loss = functional.cross_entropy(model(images), labels, reduction="sum") / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = copy.deepcopy(model.state_dict())
        average = {
            key: DECAY * average[key] + (1 - DECAY) * now
            if average and now.is_floating_point()
            else now
            for key, now in state.items()
        }
    return model.state_dict(), average


@pytest.mark.parametrize("name", NAMES)
def test_as_by_a_plain_loop(name: str) -> None:
    expected, expected_average = plain(name)
    model = network(name)
    average = WeightAverage(model, DECAY)
    strategy = Single()
    strategy.start(World(0, 1, 0, torch.device("cpu")))
    engine = strategy.prepare(
        model, lambda parameters: torch.optim.SGD(parameters, LR, 0.9), StepSettings(BATCH)
    )
    torch.manual_seed(5)
    for images, labels in zip(*(each.split(BATCH) for each in data()), strict=True):
        engine.step([Batch(images, labels, BATCH, BATCH)], LR)
        average.update(engine.model)
    found = whole_state(engine.model, engine.weights())
    assert list(found) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-7, msg=key)
    kept = whole_state(average.model, average.weights())
    assert list(kept) == list(expected)
    for key, value in expected_average.items():
        if value.is_floating_point():
            torch.testing.assert_close(kept[key], value, rtol=1e-4, atol=1e-6, msg=key)
    network(name).load_state_dict(kept)
