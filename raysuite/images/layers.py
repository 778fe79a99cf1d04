"""What an image is made of: the choices, and what each of them puts into its two layers."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from raysuite import parts
from raysuite.errors import UserError

EXTRAS = tuple(part.name for part in parts.EXTRAS if part.in_images)
"""The optional parts; each has a file of locked requirements."""

DEBIAN = "bookworm"

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names of machines -> the names that images go by."""


class Variant(StrEnum):
    """Whether Horovod is compiled for GPUs, and for which CUDA. torch's own wheels bring CUDA in
    all."""

    CPU = "cpu"
    CUDA = "cuda"
    CUDA12 = "cuda12"
    """With an older torch, for hosts whose NVIDIA driver is older than 580."""


CUDA_IMAGES = {
    Variant.CUDA: "nvidia/cuda:13.2.1-devel-ubuntu24.04",
    Variant.CUDA12: "nvidia/cuda:12.8.1-devel-ubuntu24.04",
}
"""With the CUDA of the locked torch, minor version included: Horovod's kernels are compiled with
this image's nvcc and NCCL, and run in one process with torch's."""
LEAST_DRIVERS = {Variant.CUDA: 580, Variant.CUDA12: 525}
"""The oldest branch of NVIDIA's driver that supports that CUDA
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1)."""
COMMON_PACKAGES = (
    "ca-certificates",
    "g++",
    "git",
    "iproute2",
    "libnuma1",
    "make",
    "numactl",
    "procps",
    "python3",
    "python3-dev",
    "python3-venv",
)
FABRIC_PACKAGES = ("ibverbs-providers", "libfabric1", "libucx0", "rdma-core")
"""Libraries with which NCCL uses InfiniBand and similar networks."""


def this_architecture() -> str:
    """amd64 or arm64. Raises UserError on other machines."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise UserError(
            f"this machine is {machine}; images are built on {' or '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[machine]


@dataclass(frozen=True)
class Choice:
    """Which image: everything that its recipe depends on."""

    variant: Variant = Variant.CPU
    extras: tuple[str, ...] = EXTRAS
    arch: str = field(default_factory=this_architecture)

    def __post_init__(self) -> None:
        unknown = [name for name in self.extras if name not in EXTRAS]
        if unknown:
            raise UserError(f"given was the extra {unknown[0]!r}; valid are {', '.join(EXTRAS)}")
        if self.arch not in ARCHITECTURES.values():
            known = " and ".join(ARCHITECTURES.values())
            raise UserError(f"given was the architecture {self.arch!r}; valid are {known}")
        object.__setattr__(self, "extras", tuple(name for name in EXTRAS if name in self.extras))

    @property
    def packages(self) -> Sequence[str]:
        """The distribution's packages of the base layer, sorted."""
        fabric = FABRIC_PACKAGES if self.variant in CUDA_IMAGES else ()
        return sorted((*COMMON_PACKAGES, *fabric))
