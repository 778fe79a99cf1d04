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
    # a one update late and b in time; of the sample 1
    "pipedream": [(6, 1.7, 2.8), (5.6, 1.42, 2.6), (4.42, 1.16, 2.43), (2.8188, 0.917, 2.314)],
    # both one update late; of the samples 1 and 2
    "pipedream_2bw": [(18, 1.55, 2.7), (18, 1.1, 2.4), (12.555, 0.695, 2.1675)],
}
"""The loss, a and b of each step. Before the fourth a checkpoint is loaded, which empties the
pipeline."""


@pytest.mark.parametrize("schedule", STEPS)
def test_gradients_are_those_of_the_schedules_weights_and_applied_to_the_latest(
    schedule: Any, tmp_path: Path
) -> None:
    samples = 1 if schedule == "pipedream" else 2
    strategy = Delayed(PipelineOptions(schedule=schedule, stages=2, micro_batches=samples))
    strategy.start(ALONE)
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for weight, value in zip(network.parameters(), (2.0, 3.0), strict=True):
        nn.init.constant_(weight, value)
    settings = StepSettings(1, samples)
    engine = strategy.prepare(network, lambda own: torch.optim.SGD(own, lr=9.0), settings)
    engine.criterion = lambda output, targets: output.sum()
    images = [torch.full((1, 1), n + 1.0) for n in range(samples)] * 2
    two_copies = [Batch(each, None, 1, 2 * samples) for each in images]
    for step, wanted in enumerate(STEPS[schedule]):
        if step == 3:
            engine.save(tmp_path)
            engine.load(tmp_path)
        loss = engine.step(two_copies, 0.1).item()
        found = loss / 2, *(each.item() for each in network.parameters())
        assert found == pytest.approx(wanted, rel=1e-5), step
