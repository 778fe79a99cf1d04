"""On one GPU: NVML's counters move with work, and a run tells operations, use and energy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from raysuite.measure.clock import now
from raysuite.measure.power_meter import PowerMeter
from tests.require import require

pytestmark = pytest.mark.gpu


def test_work_draws_energy_and_keeps_the_device_busy() -> None:
    require("gpu")
    device = torch.device("cuda", 0)
    meter = PowerMeter(device, Path("/nonexistent"))
    try:
        assert meter.device != 0
        matrix = torch.randn(4096, 4096, device=device)
        meter.begin()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            matrix = (matrix @ matrix).clamp(-1, 1)
            now(device)
        reading = meter.end()
    finally:
        meter.close()
    assert reading.device_joules is not None
    assert reading.device_joules > 0
    assert reading.device_busy is not None
    assert 0 < reading.device_busy <= 1
    assert reading.host_joules is None
