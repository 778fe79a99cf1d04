"""What an image is made of: the choices, and the definition files of its two layers, which spython
writes from one recipe."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite import parts
from raysuite.errors import UserError

if TYPE_CHECKING:
    from spython.main.parse.recipe import Recipe

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


# The definition files.

HOME = "/opt/raysuite"
"""Where the image keeps raysuite's environment."""
FACTS = "/etc/raysuite-image.json"
"""The image's file of facts about itself."""
BASE, TOP = "base", "raysuite"
"""The two layers: the distribution's packages, and what Python needs."""

_FORMAT = "1"
_DEBOOTSTRAP = f"Bootstrap: debootstrap\nOSVersion: {DEBIAN}\nMirrorURL: {{{{ mirror }}}}"
COMPAT = "/usr/local/cuda/compat"
"""libcuda of the image's CUDA for older drivers, which NVIDIA's images bring (cuda-compat)."""
_COMPAT_WHERE = (
    r"match($0, / [0-9]+\.[0-9.]+ /) && /Kernel Module/ { driver = substr($0, RSTART + 1) + 0 } "
    r"/Model:.*(GeForce|TITAN|Quadro|RTX)/ { other = 1 } "
    r'END { if (driver && driver < LEAST && !other) printf "%s", "FOLDER" }'
)
"""awk: the folder of cuda-compat, where the host's driver is too old and its GPUs are NVIDIA's for
data centres. Others refuse it, and with a newer driver it would be the older of two
(docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html)."""
_NOTE = "# Made by `raysuite image recipe`; do not edit. Built by `raysuite image build`.\n"


def definitions(choice: Choice) -> dict[str, str]:
    """The two definition files by layer; `{{ mirror }}` is filled in when the base is built."""
    return {
        BASE: _text(_base(choice), _head(choice)),
        TOP: _text(_top(choice), f"Bootstrap: localimage\nFrom: {BASE}.sif"),
    }


def _head(choice: Choice) -> str:
    image = CUDA_IMAGES.get(choice.variant)
    return f"Bootstrap: docker\nFrom: {image}" if image else _DEBOOTSTRAP


def file_names(choice: Choice) -> dict[str, str]:
    """The definition files' names in containers/, by layer."""
    return {BASE: f"{BASE}-{choice.variant}.def", TOP: f"{TOP}-{choice.variant}.def"}


def ingredients(choice: Choice, root: Path) -> list[Path]:
    """The files of the checkout `root` that the upper layer is built with, raysuite itself apart.

    Raises OSError where one is missing when it is read.
    """
    names = ["base", *choice.extras, "tools"]
    if "horovod" in choice.extras:
        names.append("horovod-source")
    if choice.variant is Variant.CUDA12:
        names.append("cuda12")
    files = [root / "containers" / "requirements" / f"{name}.txt" for name in names]
    files += sorted((root / "containers").glob("*.patch"))
    scripts = ("setup_image", "setup_venv", "horovod_wheel")
    return [*files, *(root / "deploy" / f"{name}.py" for name in scripts)]


def digest(choice: Choice, root: Path) -> str:
    """64 hex digits: equal for the same recipe, locked packages, scripts and architecture."""
    parts = [("format", _FORMAT.encode()), ("arch", choice.arch.encode())]
    parts.append(("extras", ",".join(choice.extras).encode()))
    parts += [(name, text.encode()) for name, text in definitions(choice).items()]
    for path in ingredients(choice, root):
        parts.append((path.relative_to(root).as_posix(), path.read_bytes()))
    found = hashlib.sha256()
    for name, content in parts:
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _base(choice: Choice) -> Recipe:
    recipe = _recipe()
    recipe.labels = [["raysuite.variant", str(choice.variant)]]
    packages = " ".join(choice.packages)
    recipe.install = [
        "set -eu",
        "export DEBIAN_FRONTEND=noninteractive",
        "if [ -e /mnt/apt.conf ]; then",
        "    export APT_CONFIG=/mnt/apt.conf",
        "fi",
        "apt-get update -q",
        f"apt-get install -qy --no-install-recommends {packages}",
        "rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb",
    ]
    return recipe


def _top(choice: Choice) -> Recipe:
    image = CUDA_IMAGES.get(choice.variant)
    gpu = "NCCL" if image and "horovod" in choice.extras else ""
    recipe = _recipe()
    recipe.files = [["context", HOME]]
    recipe.environ = [
        f'PATH="{HOME}/.venv/bin:$PATH"',
        # a site's modules and a user's ~/.local must not reach into the image's packages
        "PYTHONPATH= PYTHONHOME= PYTHONNOUSERSITE=1 VIRTUAL_ENV=",
        "LC_ALL=C.UTF-8",
    ]
    if image:
        least = LEAST_DRIVERS[choice.variant]
        where = _COMPAT_WHERE.replace("LEAST", str(least)).replace("FOLDER", COMPAT)
        files = "/proc/driver/nvidia/version /proc/driver/nvidia/gpus/*/information"
        recipe.environ += [
            f"CUDA_COMPAT=\"$(awk '{where}' {files} 2>/dev/null)\"",
            'LD_LIBRARY_PATH="$CUDA_COMPAT${CUDA_COMPAT:+${LD_LIBRARY_PATH:+:}}${LD_LIBRARY_PATH:-}"',
        ]
    recipe.install = ["set -eu"]
    if gpu:
        recipe.install.append('export PATH="/usr/local/cuda/bin:$PATH"')
    recipe.install += [f"RAYSUITE_HOROVOD_GPU={gpu} python3 {HOME}/deploy/setup_image.py"]
    if not image:
        recipe.install += [
            "# the building machine's mirror is nobody else's",
            "rm -f /etc/apt/sources.list",
            "sed -i 's|^MirrorURL:.*|MirrorURL:|' /.singularity.d/Singularity",
            "sed -i '/deffile.mirrorurl/d' /.singularity.d/labels.json",
        ]
    recipe.test = ["set -eu", "cd /tmp", "raysuite --version", "python -m raysuite.images.selftest"]
    recipe.entrypoint = "exec raysuite"
    return recipe


def _recipe() -> Recipe:
    from spython.main.parse.recipe import Recipe

    recipe = Recipe()
    recipe.fromHeader = "scratch"  # spython wants one; _text puts the true head in its place
    return recipe


def _text(recipe: Any, head: str) -> str:
    """spython's text, with a head of our own: it writes `Bootstrap: docker` alone."""
    from spython.main.parse.writers import SingularityWriter

    written = SingularityWriter({"layer": recipe}).convert()
    _, _, sections = written.partition("\n%")
    spaced = re.sub(r"\n%", r"\n\n%", f"%{sections}")
    return f"{_NOTE}{head}\n\n{spaced.rstrip()}\n"
