"""Costs of a run: operations and bytes, counted once per run, and energy, measured per epoch."""

from __future__ import annotations

from dataclasses import astuple
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from raysuite import models
from raysuite.errors import UserError
from raysuite.measure.power_meter import PowerMeter, Reading
from raysuite.parallel.base import World
from raysuite.parallel.comm import Comm, gather_plain
from raysuite.plan import RunPlan
from raysuite.records import RunCosts
from raysuite.records.power import PowerUse, counter_name
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions

if TYPE_CHECKING:
    from raysuite.models.model_costs import ModelCost  # imports triton

# Peak dense rates of devices as published by their vendors, in operations per second.
# Only devices with a published rate are listed. For all others, such as CPUs, the peak is unknown,
# and shares of the peak are not reported.

TERA = 1e12

V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
H200 = "https://www.nvidia.com/en-us/data-center/h200/"
# The documents of H100 and H200 state tensor rates with sparsity; dense rates are half of these.


class Peak(NamedTuple):
    """The peak rate of one device in one dtype."""

    flops: float
    """Operations per second, a multiply-add counted as two."""
    number_format: str
    source: str


_V100_SXM = {"fp32": 15.7, "fp16": 125.0}
_V100_PCIE = {"fp32": 14.0, "fp16": 112.0}
_A100 = {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}
_H100_SXM = {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5}
_H100_PCIE = {"fp32": 51.0, "tf32": 378.0, "bf16": 756.5, "fp16": 756.5}

_TERAFLOPS: dict[str, tuple[dict[str, float], str]] = {
    "Tesla V100-SXM2-16GB": (_V100_SXM, V100),
    "Tesla V100-SXM2-32GB": (_V100_SXM, V100),
    "Tesla V100-PCIE-16GB": (_V100_PCIE, V100),
    "Tesla V100-PCIE-32GB": (_V100_PCIE, V100),
    "NVIDIA A100-SXM4-40GB": (_A100, A100),
    "NVIDIA A100-SXM4-80GB": (_A100, A100),
    "NVIDIA A100-PCIE-40GB": (_A100, A100),
    "NVIDIA A100 80GB PCIe": (_A100, A100),
    "NVIDIA H100 80GB HBM3": (_H100_SXM, H100),
    "NVIDIA H100 PCIe": (_H100_PCIE, H100),
    "NVIDIA H200": (_H100_SXM, H200),
}
"""The driver's name of a device -> dtype -> 10^12 operations per second. The whole name must match:
a MIG slice has another name and another rate."""


def peak(device: str, precision: str, tf32: bool) -> Peak | None:
    """The peak rate of a device for training in `precision` (fp32, bf16 or fp16); None if unknown.

    With `tf32`, convolutions in fp32 may use TF32 if the device supports it. The peak is then the
    rate of TF32, which is higher.
    """
    rates, source = _TERAFLOPS.get(device, ({}, ""))
    number_format = "tf32" if precision == "fp32" and tf32 and "tf32" in rates else precision
    rate = rates.get(number_format)
    return None if rate is None else Peak(rate * TERA, number_format, source)


class EpochPower:
    """Measures the energy of the devices and hosts of all workers in each epoch's training."""

    def __init__(self, plan: RunPlan, world: World) -> None:
        self._meter = PowerMeter(world.device) if plan.spec.measure.power == "auto" else None
        self._reading = Reading()

    def begin(self) -> None:
        """Call before the first step."""
        if self._meter is not None:
            self._meter.begin()

    def end(self) -> None:
        """Call after the last step, before results are computed."""
        if self._meter is not None:
            self._reading = self._meter.end()

    def use(self, comm: Comm) -> PowerUse | None:
        """All workers' readings of the epoch; None if power is not measured, or if no worker has an
        energy counter. All ranks must call it."""
        if self._meter is None:
            return None
        own = (*astuple(self._reading), self._meter.device, self._meter.host)
        joules, busy, host_joules, devices, hosts = zip(*gather_plain(comm, own), strict=True)
        if not any(devices) and not any(hosts):
            return None
        return PowerUse(
            devices=[counter_name(each) for each in devices],
            device_joules=list(joules),
            device_busy=list(busy),
            hosts=[counter_name(each) for each in hosts],
            host_joules=list(host_joules),
        )

    def close(self) -> None:
        """Stop sampling."""
        if self._meter is not None:
            self._meter.close()


def run_costs(plan: RunPlan, world: World, comm: Comm) -> RunCosts:
    """Count the cost of one image, and find the workers' peak rate. All ranks must call it."""
    device = _device(world, comm)
    known = peak(device, plan.spec.training.precision, torch.backends.cudnn.allow_tf32)
    cost, message = None, ""
    try:
        with torch.random.fork_rng(devices=[]):
            cost = _counted(plan.spec.model.model_dump_json(), plan.dataset)
    except UserError as error:
        message = str(error)
    names = ("parameters", "forward_flops", "gradient_bytes", "small_parameters")
    counts: dict[str, Any] = {name: getattr(cost, name, None) for name in names}
    return RunCosts(
        run_id=plan.run_id,
        **counts,
        message=message,
        device=device,
        peak_flops=known and known.flops,
        peak_format=known.number_format if known else "",
        peak_source=known.source if known else "",
    )


@lru_cache
def _counted(model: str, facts: DatasetFacts) -> ModelCost:
    """The cost of a model, cached because counting it takes seconds for a deep network."""
    return models.cost_of(ModelOptions.model_validate_json(model), facts)


def _device(world: World, comm: Comm) -> str:
    """The device name that all workers have; empty on CPUs, and if the names differ."""
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else ""
    return name if len(set(gather_plain(comm, name))) == 1 else ""
