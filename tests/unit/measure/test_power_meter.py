"""RAPL's counters, from files like the kernel's; NVML is tried where there is a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from raysuite.measure import power_meter
from raysuite.measure.power_meter import Gpu, PowerMeter, Rapl
from raysuite.train.cost_meter import peak

CPU = torch.device("cpu")
RANGE = 1_000_000


def zone(root: Path, place: str, name: str, microjoules: int = 0) -> Path:
    folder = root / place
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
    return set_to(folder, microjoules)


def set_to(folder: Path, microjoules: int) -> Path:
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder


def test_packages_and_their_memory_are_summed(tmp_path: Path) -> None:
    first, second = (zone(tmp_path, f"intel-rapl:{n}", f"package-{n}", 100) for n in range(2))
    dram = zone(tmp_path, "intel-rapl:0:1", "dram", 500)
    core = zone(tmp_path, "intel-rapl:0:0", "core")  # a part of its package
    psys = zone(tmp_path, "intel-rapl:2", "psys")  # the packages and more
    meter = Rapl.found(tmp_path)
    assert meter is not None
    for folder, value in ((first, 300), (second, 150), (dram, 600), (core, 999), (psys, 999)):
        set_to(folder, value)
    assert meter.joules() == pytest.approx(350e-6)


def test_a_counter_that_starts_again(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", RANGE - 10)
    meter = Rapl.found(tmp_path)
    assert meter is not None
    set_to(package, 20)
    assert meter.joules() == pytest.approx(30e-6)
    set_to(package, 50)
    assert meter.joules() == pytest.approx(60e-6)
    meter.begin()
    set_to(package, 55)
    assert meter.joules() == pytest.approx(5e-6)


def test_what_cannot_be_read_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Rapl.found(tmp_path / "nothing") is None
    package = zone(tmp_path, "intel-rapl:0", "package-0")
    (package / "energy_uj").unlink()
    assert Rapl.found(tmp_path) is None
    for folder, why in (
        (tmp_path, "RAPL's counters are not readable"),
        (tmp_path / "nothing", "there is no RAPL"),
    ):
        meter = PowerMeter(CPU, folder)
        assert meter.missing == [f"energy of the host is not measured, because {why}"]
    monkeypatch.setattr(Gpu, "found", lambda device: None)
    _, of_gpu = PowerMeter(torch.device("cuda"), tmp_path).missing
    assert of_gpu == "energy of the GPU is not measured, because NVML has no counter"


def test_a_device_has_the_same_number_in_all_its_workers(monkeypatch, tmp_path: Path) -> None:
    numbers = []
    monkeypatch.setattr(power_meter, "PERIOD_S", 0.001)
    for uuid in ("GPU-1", "GPU-1", "GPU-2"):
        monkeypatch.setattr(Gpu, "found", lambda _, uuid=uuid: Gpu(Library(), "new", uuid))
        meter = PowerMeter(CPU, tmp_path)
        numbers.append(meter.device)
        meter.close()
    assert numbers[0] == numbers[1] != numbers[2]
    assert all(0 < number == int(float(number)) < 2**48 for number in numbers)


def test_the_thread_sees_what_starts_again_within_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power_meter, "PERIOD_S", 0.01)
    package = zone(tmp_path, "intel-rapl:0", "package-0")
    meter = PowerMeter(CPU, tmp_path)
    try:
        meter.begin()
        for value in (RANGE - 1, 10, RANGE - 1, 10):  # twice the range and a little more
            before = meter._rapl._last  # type: ignore[union-attr]
            temporary = package / "next"
            temporary.write_text(f"{value}\n")
            temporary.replace(package / "energy_uj")
            while meter._rapl._last == before:  # type: ignore[union-attr]
                pass
        assert meter.end() == power_meter.Reading(
            host_joules=pytest.approx(2 * RANGE * 1e-6 + 1e-5)
        )
        assert meter.host != 0 == meter.device
    finally:
        meter.close()


def test_without_any_counter_there_is_no_thread(tmp_path: Path) -> None:
    meter = PowerMeter(CPU, tmp_path)
    assert meter._thread is None
    meter.begin()
    assert meter.end() == power_meter.Reading()
    assert (meter.device, meter.host) == (0, 0)
    meter.close()


@pytest.mark.parametrize(
    ("device", "precision", "tf32", "teraflops", "number_format"),
    [
        ("NVIDIA A100-SXM4-40GB", "fp32", True, 156, "tf32"),
        ("NVIDIA A100-SXM4-40GB", "fp32", False, 19.5, "fp32"),
        ("NVIDIA A100-SXM4-40GB", "bf16", True, 312, "bf16"),
        ("NVIDIA H100 80GB HBM3", "fp16", True, 989.5, "fp16"),
        ("Tesla V100-SXM2-16GB", "fp32", True, 15.7, "fp32"),  # no TF32 before Ampere
    ],
)
def test_a_known_peak(
    device: str, precision: str, tf32: bool, teraflops: float, number_format: str
) -> None:
    found = peak(device, precision, tf32)
    assert found is not None
    assert (found.flops, found.number_format) == (teraflops * 1e12, number_format)
    assert found.source.startswith("https://")


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("", "fp32"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "fp32"),
        ("NVIDIA GeForce RTX 4090", "fp16"),
        ("Tesla V100-SXM2-16GB", "bf16"),
    ],
)
def test_an_unknown_one_is_not_guessed(device: str, precision: str) -> None:
    assert peak(device, precision, True) is None


class SomeError(Exception):
    """What a library raises for what a device does not tell."""


class Library:
    """NVML's three questions, as a V100 and then an older device answer them."""

    NVMLError = SomeError
    percent, millijoules, asked = 40, 2500, 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        if handle == "old":
            raise SomeError
        self.asked += 1
        return self.millijoules

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=self.percent)

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Nothing to leave."""


def test_a_window_is_of_its_own_samples_and_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library()
    monkeypatch.setattr(power_meter, "PERIOD_S", 0.001)
    monkeypatch.setattr(Gpu, "found", lambda device: Gpu(library, "new", "GPU-1"))
    meter = PowerMeter(CPU, tmp_path)
    try:
        for percent, drawn in ((100, 500), (40, 3000), (60, 0)):
            library.percent = percent
            meter.begin()
            while meter.last is None:
                pass
            library.millijoules += drawn
            reading = meter.end()
            assert reading.device_busy == pytest.approx(percent / 100)
            assert reading.device_joules == drawn / 1000
            assert meter.device != 0
    finally:
        meter.close()
    assert Gpu(library, "old", "GPU-2").joules() is None


def test_amds_counter_is_read_in_its_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    class Smi:  # answers of AMD SMI's documentation; no such GPU is here
        AmdSmiException = OSError
        activity: object = 25

        def amdsmi_get_processor_handle_from_bdf(self, place: str) -> str:
            return {"0000:23:00.0": "handle"}[place]

        def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
            return f"of {handle}"

        def amdsmi_get_energy_count(self, handle: str) -> dict[str, float]:
            return {"energy_accumulator": 200_000, "counter_resolution": 15.3, "timestamp": 0}

        def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, object]:
            return {"gfx_activity": self.activity}

        def amdsmi_shut_down(self) -> None:
            self.activity = "shut down"

    smi, place = Smi(), SimpleNamespace(pci_domain_id=0, pci_bus_id=0x23, pci_device_id=0)
    monkeypatch.setattr(power_meter, "amdsmi", lambda: smi)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: place)
    gpu = power_meter.AmdGpu.found(torch.device("cuda", 0))
    assert gpu is not None
    assert (gpu.uuid, gpu.joules(), gpu.busy()) == ("of handle", pytest.approx(3.06), 0.25)
    smi.activity = "N/A"
    assert gpu.busy() is None
    gpu.close()
    assert smi.activity == "shut down"
    assert power_meter.AmdGpu.found(CPU) is None
