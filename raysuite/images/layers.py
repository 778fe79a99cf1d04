"""What an image is made of: the choices, and what each of them puts into its two layers."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from raysuite.errors import UserError

EXTRAS = ("horovod", "deepspeed", "dali", "timm")
"""The optional parts; each has a file of locked requirements."""

DEBIAN = "bookworm"
CUDA_IMAGE = "nvidia/cuda:13.0.1-devel-ubuntu24.04"
"""CUDA 13, as the locked torch: Horovod's kernels are compiled with this image's nvcc and NCCL."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names of machines -> the names that images go by."""


class Variant(StrEnum):
    """Whether Horovod is compiled for GPUs. torch's own wheels know CUDA in both."""

    CPU = "cpu"
    CUDA = "cuda"


class Bootstrap(StrEnum):
    """Where the base layer comes from."""

    DOCKER = "docker"
    DEBOOTSTRAP = "debootstrap"


BOOTSTRAPS = {Variant.CPU: Bootstrap.DEBOOTSTRAP, Variant.CUDA: Bootstrap.DOCKER}

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
FABRIC_PACKAGES = ("ibverbs-providers", "libfabric1", "libucx0", "openmpi-bin", "rdma-core")
"""What NCCL and MPI of a site speak to InfiniBand and its kin with."""


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
    bootstrap: Bootstrap | None = None
    """None: docker for cuda, debootstrap for cpu."""
    extras: tuple[str, ...] = EXTRAS
    arch: str = field(default_factory=this_architecture)

    def __post_init__(self) -> None:
        if self.bootstrap is None:
            object.__setattr__(self, "bootstrap", BOOTSTRAPS[self.variant])
        if self.bootstrap is not BOOTSTRAPS[self.variant]:
            raise UserError(
                f"given was {self.variant} from {self.bootstrap}; valid are cpu from debootstrap "
                "and cuda from docker (nvcc and NCCL's headers come with NVIDIA's image)"
            )
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
        fabric = FABRIC_PACKAGES if self.variant is Variant.CUDA else ()
        return sorted((*COMMON_PACKAGES, *fabric))
