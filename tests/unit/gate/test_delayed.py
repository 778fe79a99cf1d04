"""The reference for asynchronous pipelines, on the network a * b * x, whose steps are by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raysuite.data.base import Batch
from raysuite.gate.delayed import Delayed
from raysuite.parallel.base import StepSettings, World
from raysuite.spec.strategies import PipelineOptions

ALONE = World(0, 1, 0, torch.device("cpu"))
STEPS = {
    # a one update late and b in time; samples: 1
    "pipedream": (1, [(6, 1.7, 2.8), (5.6, 1.42, 2.6), (4.42, 1.16, 2.43), (2.8188, 0.917, 2.314)]),
    # both one update late; samples: 1 and 2
    "pipedream_2bw": (
        2,
        [(18, 1.55, 2.7), (18, 1.1, 2.4), (12.555, 0.695, 2.1675), (4.5192375, 0.369875, 2.06325)],
    ),
}
"""Schedule -> micro-batches, and the loss, a and b of each step; a checkpoint, which empties the
pipeline, is loaded before the last step."""


@pytest.mark.parametrize("schedule", STEPS)
def test_gradients_are_those_of_the_schedules_weights_and_applied_to_the_latest(
    schedule: Any, tmp_path: Path
) -> None:
    samples, expected = STEPS[schedule]
    strategy = Delayed(PipelineOptions(schedule=schedule, stages=2, micro_batches=samples))
    strategy.start(ALONE)
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for weight, value in zip(network.parameters(), (2.0, 3.0), strict=True):
            weight.fill_(value)
    engine = strategy.prepare(
        network, lambda own: torch.optim.SGD(own, lr=9.0), StepSettings(1, samples)
    )
    engine.criterion = lambda output, targets: output.sum()
    images = [torch.full((1, 1), n + 1.0) for n in range(samples)] * 2
    two_copies = [Batch(each, None, 1, 2 * samples) for each in images]
    for step, wanted in enumerate(expected):
        if step == 3:
            engine.save(tmp_path)
            engine.load(tmp_path)
        loss = engine.step(two_copies, 0.1).item()
        found = loss / 2, *(each.item() for each in network.parameters())
        assert found == pytest.approx(wanted, rel=1e-5), step
