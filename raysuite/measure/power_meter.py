"""Measure the energy of a worker's device and host, and the device's utilisation, in a thread.

NVML counts the energy of a GPU (`nvmlDeviceGetTotalEnergyConsumption`, from Volta on) and reports
the share of its last sample period in which a kernel ran (`nvmlDeviceGetUtilizationRates`; the
period is a sixth of a second to a second). AMD SMI gives both figures for AMD's GPUs (untested;
rocm.docs.amd.com, AMD SMI Python API reference). RAPL counts the energy of processors and of their
memory (Linux, Documentation/power/powercap/powercap.rst); on most systems only root can read it. If
there is nothing to read, no thread is started.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysuite.measure.environment import amdsmi, nvml

POWERCAP = Path("/sys/class/powercap")
BOOT = Path("/proc/sys/kernel/random/boot_id")

PERIOD_S = 1.0
"""Seconds between two samples. The period is short, because RAPL's counters wrap around at some
10^5 joules, that is, after minutes."""

_MICRO = 1e-6
_MILLI = 1e-3


@dataclass(frozen=True)
class Reading:
    """The values between `begin` and `end` of a PowerMeter; None if a value cannot be read."""

    device_joules: float | None = None
    device_busy: float | None = None
    """Mean utilisation of the device over the samples, in [0, 1]."""
    host_joules: float | None = None


class PowerMeter:
    """Measures the energy of this worker's device and host between `begin` and `end`.

    The energy of other processes is included, because the counters cannot separate it.
    """

    def __init__(self, device: torch.device, powercap: Path = POWERCAP) -> None:
        self._rapl = Rapl.found(powercap)
        kind = AmdGpu if torch.version.hip else Gpu
        self._gpu = kind.found(device)
        self.missing: list[str] = []
        """A message for each counter that cannot be read."""
        if self._rapl is None:
            there = any(map(_counts, powercap.glob("intel-rapl:*")))
            why = "RAPL's counters are not readable" if there else "there is no RAPL"
            self.missing.append(f"energy of the host is not measured, because {why}")
        if self._gpu is None and device.type == "cuda":
            self.missing.append(
                f"energy of the GPU is not measured, because {kind.library} has no counter"
            )
        self.last: tuple[float, Reading] | None = None
        """The last sample since `begin`: its time by the monotonic clock, and its figures."""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._busy: list[float] = []
        self._began: float | None = None
        self._thread: threading.Thread | None = None
        if self._rapl is not None or self._gpu is not None:
            self._thread = threading.Thread(target=self._watch, name="power", daemon=True)
            self._thread.start()

    @property
    def host(self) -> int:
        """A number that identifies the host, equal in all its containers; 0 if the host has no
        counter."""
        return 0 if self._rapl is None else _number(_boot_id())

    @property
    def device(self) -> int:
        """A number that identifies the device, equal in all workers that share the device; 0 if the
        device has no counter."""
        return 0 if self._gpu is None else _number(self._gpu.uuid)

    def begin(self) -> None:
        with self._lock:
            self._busy.clear()
            self.last = None
            if self._rapl is not None:
                self._rapl.begin()
            self._began = self._gpu.joules() if self._gpu is not None else None

    def end(self) -> Reading:
        """The figures since `begin`."""
        with self._lock:
            return self._reading()

    def _reading(self) -> Reading:
        ended = self._gpu.joules() if self._gpu is not None else None
        known = self._began is not None and ended is not None
        return Reading(
            device_joules=ended - self._began if known else None,  # type: ignore[operator]
            device_busy=sum(self._busy) / len(self._busy) if self._busy else None,
            host_joules=self._rapl.joules() if self._rapl is not None else None,
        )

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if self._gpu is not None:
            self._gpu.close()

    def _watch(self) -> None:
        while not self._ending.wait(PERIOD_S):
            with self._lock:
                busy = self._gpu.busy() if self._gpu is not None else None
                if busy is not None:
                    self._busy.append(busy)
                self.last = (time.perf_counter(), self._reading())


class Rapl:
    """RAPL's counters, of a host's processor packages and memory. They wrap around to 0."""

    def __init__(self, zones: list[Path]) -> None:
        self._files = [zone / "energy_uj" for zone in zones]
        self._ranges = [_value(zone / "max_energy_range_uj") for zone in zones]
        self._last = [_value(file) for file in self._files]
        self._sum = 0

    @classmethod
    def found(cls, root: Path) -> Rapl | None:
        """The counters below `root`; None if there are none, or if they cannot be read."""
        zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _counts(zone)]
        try:
            return cls(zones) if zones else None
        except (OSError, ValueError):
            return None

    def begin(self) -> None:
        """Count from now on."""
        self.joules()
        self._sum = 0

    def joules(self) -> float | None:
        """Joules since `begin`. Call it more often than a counter wraps around."""
        try:
            values = [_value(file) for file in self._files]
        except (OSError, ValueError):
            return None
        for value, last, most in zip(values, self._last, self._ranges, strict=True):
            self._sum += value - last if value >= last else value - last + most
        self._last = values
        return self._sum * _MICRO


def _counts(zone: Path) -> bool:
    """Whether a zone counts the energy of a processor package or of memory. Other zones (cores,
    psys) count this energy, or a part of it, again."""
    try:
        name = (zone / "name").read_text().strip()
    except OSError:
        return False
    return name.startswith("package") or name == "dram"


def _value(file: Path) -> int:
    return int(file.read_text())


class Gpu:
    """A GPU, read by NVML. A part of a GPU (MIG) has no counter."""

    library = "NVML"

    def __init__(self, driver: Any, handle: Any, uuid: str) -> None:
        self._driver, self._handle, self.uuid = driver, handle, uuid

    @classmethod
    def found(cls, device: torch.device) -> Gpu | None:
        """The GPU of a torch device; None for a CPU, or if NVML cannot access the GPU."""
        if device.type != "cuda" or (pynvml := nvml()) is None:
            return None
        # not by its index: CUDA_VISIBLE_DEVICES gives devices other indices than NVML's
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        try:
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid), uuid)
        except pynvml.NVMLError:
            pynvml.nvmlShutdown()
            return None

    def joules(self) -> float | None:
        """Joules since the driver was loaded."""
        count = self._asked(self._driver.nvmlDeviceGetTotalEnergyConsumption)
        return None if count is None else count * _MILLI

    def busy(self) -> float | None:
        """Share of NVML's last sample period in which a kernel ran, in [0, 1]."""
        rates = self._asked(self._driver.nvmlDeviceGetUtilizationRates)
        return None if rates is None else rates.gpu / 100

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._handle)
        except self._error:  # the device does not report this value
            return None

    @property
    def _error(self) -> Any:
        return self._driver.NVMLError

    def close(self) -> None:
        self._driver.nvmlShutdown()


class AmdGpu(Gpu):
    """An AMD GPU, read by ROCm's AMD SMI. Untested: written from AMD SMI's documentation."""

    library = "AMD SMI"

    @classmethod
    def found(cls, device: torch.device) -> AmdGpu | None:
        """The GPU of a torch device; None for a CPU, or if AMD SMI cannot access the GPU."""
        if device.type != "cuda" or (smi := amdsmi()) is None:
            return None
        its: Any = torch.cuda.get_device_properties(device)
        place = f"{its.pci_domain_id:04x}:{its.pci_bus_id:02x}:{its.pci_device_id:02x}.0"
        try:
            handle = smi.amdsmi_get_processor_handle_from_bdf(place)
            return cls(smi, handle, smi.amdsmi_get_gpu_device_uuid(handle))
        except smi.AmdSmiException:
            smi.amdsmi_shut_down()
            return None

    def joules(self) -> float | None:
        count = self._asked(self._driver.amdsmi_get_energy_count)
        if count is None or "energy_accumulator" not in count:  # this key exists from ROCm 6.2 on
            return None
        return float(count["energy_accumulator"] * count["counter_resolution"] * _MICRO)

    def busy(self) -> float | None:
        """Share of AMD SMI's last sample period in which the compute engine worked, in [0, 1]."""
        rates = self._asked(self._driver.amdsmi_get_gpu_activity)
        share = None if rates is None else rates["gfx_activity"]
        return share / 100 if isinstance(share, int) else None  # "N/A" if the share is not reported

    @property
    def _error(self) -> Any:
        return self._driver.AmdSmiException

    def close(self) -> None:
        self._driver.amdsmi_shut_down()


def _boot_id() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _number(name: str) -> int:
    """A 48-bit hash of a name, exact as a 64-bit float; 0 for an empty name."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) if name else 0
