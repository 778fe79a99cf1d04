"""What a device can do at most, by its vendor: operations per second, dense.

Only devices whose document states it are listed. Of all others, CPUs among them, the peak is not
known, and what would be a part of it is not told.
"""

from __future__ import annotations

from typing import NamedTuple

TERA = 1e12

V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
H200 = "https://www.nvidia.com/en-us/data-center/h200/"
# H100's and H200's documents state tensor rates with sparsity; without it they are half.


class Peak(NamedTuple):
    """The highest rate of one device in one number format."""

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
"""The driver's name of a device -> number format -> 10^12 operations per second. A name must be
equal: a part of a device (MIG) has another, and another rate."""


def peak(device: str, precision: str, tf32: bool) -> Peak | None:
    """The peak of a device for training in `precision` (fp32, bf16 or fp16); None if unknown.

    With `tf32`, convolutions in fp32 may use that format where the device has it, and they are
    held against its rate, which is the higher one.
    """
    rates, source = _TERAFLOPS.get(device, ({}, ""))
    number_format = "tf32" if precision == "fp32" and tf32 and "tf32" in rates else precision
    rate = rates.get(number_format)
    return None if rate is None else Peak(rate * TERA, number_format, source)
