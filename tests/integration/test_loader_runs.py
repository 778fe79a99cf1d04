"""Training on a cluster that is full: loaders that need more than the worker itself."""

from __future__ import annotations

import pytest

from raysuite.records import EpochFinished
from tests.integration.workplace import Workplace
from tests.marks import SLOW_MARKS

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(900)]

SPEC = """\
name: loaders
model: own:Net
data: digits
strategy: ddp
optimizer: {name: sgd, lr: 0.05}
training: {epochs: 2, global_batch: 128}
resources: {device: cpu, workers: 2}
matrix: {loader: [native, memory, ray_data, synthetic]}
"""


def test_memory_and_ray_data_train_as_native_does_on_as_many_workers_as_cpus(
    workplace: Workplace,
) -> None:
    workplace.write("loaders.yaml", SPEC)
    done = workplace.run("raysuite", "run", "loaders.yaml")
    results = workplace.results()
    losses = [
        [
            loss
            for record in results.records(plan["run_id"])
            if isinstance(record, EpochFinished)
            for loss in (*record.losses, record.val_loss, record.val_accuracy)
        ]
        for plan in results.plans()
    ]
    native, memory, ray_data, synthetic = losses
    assert native == memory == ray_data
    assert len(synthetic) == len(native)
    assert "validations have no meaning: ddp · synthetic · 2 workers." in " ".join(
        done.stdout.split()
    )
