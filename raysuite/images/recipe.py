"""The recipe of an image: its choices, its ingredients, the arguments of the two definition files
in containers/, and a Dockerfile made from these files."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from raysuite import parts
from raysuite.errors import UserError

EXTRAS = tuple(part.name for part in parts.EXTRAS if part.in_images)
"""The optional parts; each has a file of locked requirements."""

DEBIAN = "bookworm"

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name of an architecture -> its name in images."""


class Variant(StrEnum):
    """A variant of an image: whether Horovod is compiled for GPUs, and for which CUDA version.
    torch's wheels contain CUDA in all variants."""

    CPU = "cpu"
    CUDA = "cuda"
    CUDA12 = "cuda12"
    """A variant with an older torch, for hosts whose NVIDIA driver is older than 580."""


CUDA_IMAGES = {
    Variant.CUDA: "nvidia/cuda:13.2.1-devel-ubuntu24.04",
    Variant.CUDA12: "nvidia/cuda:12.8.1-devel-ubuntu24.04",
}
"""NVIDIA's images with the CUDA version (major and minor) of the locked torch. Horovod is compiled
with the image's nvcc and NCCL, and runs in the same process as torch's kernels."""
LEAST_DRIVERS = {Variant.CUDA: 580, Variant.CUDA12: 525}
"""The oldest branch of NVIDIA's driver that supports the variant's CUDA version
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1)."""


def this_architecture() -> str:
    """amd64 or arm64. Raises UserError if this machine has another architecture."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise UserError(
            f"this machine is {machine}; images are built on {' or '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[machine]


@dataclass(frozen=True)
class Choice:
    """The choices that an image's recipe depends on."""

    variant: Variant = Variant.CPU
    extras: tuple[str, ...] = EXTRAS
    arch: str = field(default_factory=this_architecture)

    def __post_init__(self) -> None:
        unknown = [name for name in self.extras if name not in EXTRAS]
        if unknown:
            raise UserError(f"got the extra {unknown[0]!r}; valid: {', '.join(EXTRAS)}")
        if self.arch not in ARCHITECTURES.values():
            known = " and ".join(ARCHITECTURES.values())
            raise UserError(f"got the architecture {self.arch!r}; valid: {known}")
        object.__setattr__(self, "extras", tuple(name for name in EXTRAS if name in self.extras))


HOME = "/opt/raysuite"
"""The image's folder for raysuite's environment."""
FACTS = "/etc/raysuite-image.json"
"""The JSON file in an image that describes the image."""
BASE, TOP = "base", "raysuite"
"""The two layers: Debian's or Ubuntu's packages, and the Python environment with raysuite."""

_FORMAT = "2"


def files(root: Path) -> dict[str, Path]:
    """The two definition files of the checkout `root`, by layer."""
    return {layer: root / "containers" / f"{layer}.def" for layer in (BASE, TOP)}


def arguments(choice: Choice) -> dict[str, str]:
    """The build arguments of the definition files; `builder.commands` adds the mirror."""
    image = CUDA_IMAGES.get(choice.variant)
    return {
        "variant": str(choice.variant),
        "bootstrap": "docker" if image else "debootstrap",
        "image": image or f"debian:{DEBIAN}",
        "least_driver": str(LEAST_DRIVERS.get(choice.variant, 0)),
    }


def placeholders(text: str) -> list[str]:
    """The names of the arguments that a definition file uses."""
    return list(dict.fromkeys(re.findall(r"{{ *(\w+) *}}", text)))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace `{{ NAME }}` in a definition file by the value of NAME; unknown names are kept."""
    return re.sub(r"{{ *(\w+) *}}", lambda found: values.get(found[1], found[0]), text)


def dockerfile(choice: Choice, root: Path) -> str:
    """A Dockerfile of both layers, which spython writes from the definition files.

    The lines with CUDA_COMPAT are left out, because NVIDIA's container toolkit itself selects a
    libcuda that fits the driver. The building machine's settings are not used."""
    from spython.main.parse.parsers import SingularityParser
    from spython.main.parse.writers import DockerWriter

    recipes = {}
    for layer, path in files(root).items():
        text = filled(path.read_text("utf-8"), arguments(choice))
        text = re.sub(r"(?s)%(arguments|test).*?(?=\n%|\Z)", "", text)
        text = re.sub(r"(?m)^Bootstrap:.*", "Bootstrap: docker", text)
        parser = SingularityParser(str(path), load=False)
        parser.lines = text.replace(f"From: {BASE}.sif", f"From: {BASE}").splitlines()
        (recipe,) = parser.parse().values()
        install = [line for line in recipe.install if "/.singularity.d/" not in line]
        # one script: spython would make a RUN of each line
        recipe.install = ["\n".join(("<<'END'", *install, "END"))]
        environ = [line for line in recipe.environ if "CUDA_COMPAT" not in line]
        # spython reads a line that contains USER as Docker's USER instruction
        recipe.environ = [f"ENV {line}" if "USER" in line else line for line in environ]
        recipe.cmd = None
        recipes[layer] = recipe
    recipes[TOP].entrypoint = '["raysuite"]'
    note = "# syntax=docker/dockerfile:1\n# Made from containers/*.def by raysuite.\n"
    return note + str(DockerWriter(recipes).convert()) + "\n"


def ingredients(choice: Choice, root: Path) -> list[Path]:
    """The files of the checkout `root` that an image is built from, except raysuite itself.

    A file that is missing is listed too; reading it raises OSError.
    """
    names = ["base", *choice.extras, "tools"]
    if "horovod" in choice.extras:
        names.append("horovod-source")
    if choice.variant is Variant.CUDA12:
        names.append("cuda12")
    found = [root / "containers" / "requirements" / f"{name}.txt" for name in names]
    found += [*files(root).values(), *sorted((root / "containers").glob("*.patch"))]
    scripts = ("setup_image", "setup_venv", "horovod_wheel")
    return [*found, *(root / "deploy" / f"{name}.py" for name in scripts)]


def digest(choice: Choice, root: Path) -> str:
    """SHA-256, as 64 hex digits, of an image's definition files and their arguments, locked
    requirements, patches, scripts, extras and architecture."""
    parts = [("format", _FORMAT.encode()), ("arch", choice.arch.encode())]
    parts.append(("extras", ",".join(choice.extras).encode()))
    parts += [(name, value.encode()) for name, value in arguments(choice).items()]
    for path in ingredients(choice, root):
        parts.append((path.relative_to(root).as_posix(), path.read_bytes()))
    found = hashlib.sha256()
    for name, content in parts:
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()
