"""Sample this host's load with psutil and NVML, in a thread, every few seconds."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from raysuite.measure.environment import nvml
from raysuite.records.system import GpuSample, SystemSample

PERIOD_S = 10.0
"""Seconds between two samples, as in MLflow's monitor. A sample takes some milliseconds."""

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def sampling(file: Path | None, period_s: float = PERIOD_S) -> Iterator[None]:
    """Append samples of this host to `file` every `period_s` seconds within the context, and once
    at its end. Without a file, do nothing.

    The file is created at once, because names of MLflow's metrics contain the host if a run has
    several such files. An error in sampling or writing ends the sampling, not the run.
    """
    if file is None:
        yield
        return
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    ending = threading.Event()
    thread = threading.Thread(
        target=_sample, args=(file, period_s, ending), name="system", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _sample(file: Path, period_s: float, ending: threading.Event) -> None:
    try:
        with Host() as host:
            last = False
            while not last:
                last = ending.wait(period_s)
                with file.open("a", encoding="utf-8") as stream:
                    stream.write(host.sample().model_dump_json() + "\n")
    except Exception as error:  # drivers and disks may raise any error; the run continues
        _log.warning("sampling of this host stopped: %s: %s", type(error).__name__, error)


class Host:
    def __init__(self) -> None:
        self._process = psutil.Process()
        self._network = psutil.net_io_counters()
        psutil.cpu_percent()  # the first call only begins a measurement
        self._nvml = nvml()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def sample(self) -> SystemSample:
        """The host's load now. Processor use is the mean since the previous sample; network bytes
        are counted since this object was made."""
        memory, network = psutil.virtual_memory(), psutil.net_io_counters()
        return SystemSample(
            time=time.time(),
            cpu_busy=psutil.cpu_percent() / 100,
            memory_bytes=memory.used,
            memory_total_bytes=memory.total,
            process_bytes=self._process.memory_info().rss,
            received_bytes=network.bytes_recv - self._network.bytes_recv,
            sent_bytes=network.bytes_sent - self._network.bytes_sent,
            gpus=list(self._gpus()),
        )

    def _gpus(self) -> Iterator[GpuSample]:
        if self._nvml is None:
            return
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            memory = self._asked("nvmlDeviceGetMemoryInfo", handle)
            rates = self._asked("nvmlDeviceGetUtilizationRates", handle)
            milliwatts = self._asked("nvmlDeviceGetPowerUsage", handle)
            yield GpuSample(
                index=index,
                busy=None if rates is None else rates.gpu / 100,
                memory_bytes=memory and memory.used,
                memory_total_bytes=memory and memory.total,
                watts=None if milliwatts is None else milliwatts / 1000,
            )

    def _asked(self, question: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, question)(handle)
        except self._nvml.NVMLError:  # the device does not report this value
            return None
