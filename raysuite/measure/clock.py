"""Clocks for work on a device."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch


class StepClock:
    """Measures the time of each step; on a GPU, by CUDA events, without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._marks: list[Any] = []

    def restart(self) -> None:
        """Begin the first step."""
        self._marks.clear()
        self.mark()

    def mark(self) -> None:
        """End a step, and begin the next one."""
        if self._on_device:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Seconds of each step since `restart`. The device must have completed the last step."""
        pairs = pairwise(self._marks)
        if self._on_device:
            return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
        return [end - begin for begin, end in pairs]


def now(device: torch.device) -> float:
    """Wait until all work given to `device` is done; return the seconds of a monotonic clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
