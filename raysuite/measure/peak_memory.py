"""Measure the peak memory of this process and of its device, and the available memory."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import psutil
import torch

from raysuite.cgroups import memory_left
from raysuite.measure.script_steps import status_bytes

_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""proc(5): writing 5 to clear_refs resets the peak resident set size, VmHWM."""


def available_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on `device` (CPU: within its cgroups' limits)."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + int(unused)
    left: int = psutil.virtual_memory().available
    return max(0, min([left, *memory_left()]))


class PeakMemory:
    """Peak memory since this object was made; memory that was freed earlier does not count.

    If the kernel does not allow a reset of the peak, `process_bytes` returns the peak since the
    process's start, which is an upper bound.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with contextlib.suppress(AttributeError):  # a libc without malloc_trim
            ctypes.CDLL(None).malloc_trim(0)  # malloc_trim(3) returns freed memory to the kernel
        self.start_bytes: int = psutil.Process().memory_info().rss
        """Resident memory when this object was made, in bytes."""
        with contextlib.suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def process_bytes(self) -> int:
        """Largest resident memory of this process, in bytes."""
        with contextlib.suppress(OSError):
            if peak := status_bytes("VmHWM"):
                return peak
        now: int = psutil.Process().memory_info().rss
        return now

    def device_bytes(self) -> int:
        """Largest memory that torch had allocated on the device, in bytes; 0 on a CPU."""
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.max_memory_allocated(self._device))
