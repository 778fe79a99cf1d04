"""Measure the processor time of processes, of the whole machine, and of other programs."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import psutil
from torch import Tensor, float64, tensor

from raysuite.measure.power_meter import BOOT


def machine_seconds() -> float:
    """Processor seconds used on this machine since its start, without idle time and I/O wait."""
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    # Linux counts guests in `user` and `nice` too (proc(5))
    return float(busy - sum(getattr(times, name, 0.0) for name in ("guest", "guest_nice")))


def family_seconds(process: psutil.Process, itself: bool = True) -> float:
    """Processor seconds of the descendants of a process, and with `itself` also of the process.

    The kernel adds the time of a descendant that has ended to the process that waited for its end.
    """
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.Error:  # the process has just ended
            continue
        total += times.children_user + times.children_system
        if itself or each != process:
            total += times.user + times.system
    return total


class OtherPrograms:
    """Processor time of programs other than the workers, on the machine of each worker."""

    def begin(self) -> None:
        self._began = self._read()

    def end(self) -> None:
        self._taken = [now - then for now, then in zip(self._read(), self._began, strict=True)]

    def cores(self, gather: Callable[[Tensor], Tensor]) -> list[float]:
        """For each worker, the mean number of cores that other programs kept busy on its machine
        between `begin` and `end`. `gather` is an all-gather, so all ranks have to call `cores`."""
        host = zlib.crc32(BOOT.read_bytes()) if BOOT.exists() else 0
        rows = gather(tensor([[float(host), *self._taken]], dtype=float64)).reshape(-1, 4).tolist()
        return [
            max(0.0, machine - sum(own for other, *_, own in rows if other == host)) / elapsed
            for host, elapsed, machine, _ in rows
        ]

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), machine_seconds(), family_seconds(psutil.Process())
