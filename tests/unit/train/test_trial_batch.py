"""Networks whose ranks may use different layers in a step are refused before anything starts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite.train.trial_batch import mistakes
from tests.networks import Net
from tests.unit.train.conftest import plan_of


class Branches(Net):
    """Leaves out its middle layer by a draw."""

    def __init__(self, by: str, num_classes: int = 10) -> None:
        super().__init__(num_classes)
        self.by, self.middle = by, torch.nn.Linear(12, 12)

    def features(self, images: Tensor) -> Tensor:
        draws = {"torch": lambda: torch.rand(()).item(), "random": random.random}
        draw = draws.get(self.by, np.random.rand)()
        found = super().features(images)
        return self.middle(found) if draw < 0.5 else found


STRATEGIES: dict[str, dict[str, Any]] = {
    name: {"name": name} for name in ("ddp", "horovod", "deepspeed", "fsdp", "fabric", "accelerate")
}


@pytest.mark.parametrize("by", ["torch", "random", "numpy"])
def test_layers_that_are_chosen_at_random_are_refused(by: str) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = {"name": "tests.unit.train.test_trial_batch:Branches", "options": {"by": by}}
    found = {
        name: [mistake.key for mistake in mistakes(plan_of(model=model, strategy=strategy))]
        for name, strategy in STRATEGIES.items()
    }
    expected = {name: ["strategy.name"] for name in STRATEGIES}
    assert found == {**expected, "ddp": ["strategy.find_unused_parameters"]}


def test_dropout_alone_is_not() -> None:
    model = {"name": "tests.networks:made", "options": {"which": "dropout"}}
    assert mistakes(plan_of(model=model, strategy={"name": "fsdp"})) == []
