"""Clocks that wait for the device before they are read."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock, once all work given to `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
