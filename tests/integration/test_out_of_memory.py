"""A worker that Ray's memory monitor ends: a real one, with the monitor's threshold lowered."""

from __future__ import annotations

import psutil
import pytest

from raysuite.records import Results, RunFailed, RunFinished
from tests.integration.workplace import Workplace
from tests.marks import SLOW_MARKS

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(600)]

GIB = 2**30
SPEC = """\
name: eating
model: {name: "eating:Eating"}
data: digits
strategy: ddp
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 2, retries: 1}
matrix: {model.options.gib: [5, 0]}
"""
MODEL = """\
import os
import time

import torch

from own import Net


class Eating(Net):
    def __init__(self, num_classes, in_channels, image_size, gib):
        super().__init__(num_classes, in_channels, image_size)
        self._gib, self._held = gib, []

    def forward(self, images):
        while self._gib and os.environ.get("RANK") == "1" and len(self._held) < 4 * self._gib:
            self._held.append(torch.ones(2**28, dtype=torch.uint8))
            time.sleep(0.2)
        return super().forward(images)
"""


def test_ray_ends_a_worker_for_want_of_memory(workplace: Workplace) -> None:
    memory = psutil.virtual_memory()
    if memory.available < 8 * GIB:
        pytest.skip("8 GiB of memory are not free")
    workplace.write("eating.yaml", SPEC)
    workplace.write("eating.py", MODEL)
    share = (memory.total - memory.available + 4 * GIB) / memory.total
    command = workplace.run(
        *("raysuite", "run", "eating.yaml", "--no-mlflow"),
        code=1,
        RAY_memory_usage_threshold=f"{share:.3f}",
    )
    results = Results.open(workplace.folder / "results" / "eating")
    ends = {
        p["spec"]["model"]["options"]["gib"]: results.end_of(p["run_id"]) for p in results.plans()
    }
    assert isinstance(ends[0], RunFinished)
    full = ends[5]
    assert isinstance(full, RunFailed)
    assert full.reason == "out_of_memory", command.stderr
    assert "GB used" in full.message
