"""Parts of the installation, declared once for `doctor`, plans, images, tests and provenance.

To add a part, add a line here, a function that checks the part in
`raysuite/orchestrate/part_trials.py` and, if it needs packages, an extra of the same name in
pyproject.toml.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

_SETUP = "make setup"


@dataclass(frozen=True)
class Part:
    """A part, and how it is found, tested and installed."""

    name: str
    """The part's name, also used for its extra in pyproject.toml, for its check in
    `raysuite/orchestrate/part_trials.py`, and in RAYSUITE_REQUIRE."""
    title: str = ""
    """The part's title in `doctor`; empty for a part that `doctor` does not test."""
    module: str = ""
    distribution: str = ""
    """The package whose installed version is reported as the part's version."""
    extra: bool = False
    """Whether the part has an extra in pyproject.toml, which an installation may leave out."""
    in_images: bool = True
    """Whether `raysuite image build` installs the part's extra."""
    required: bool = True
    """Whether raysuite needs the part in order to run."""
    install: str = _SETUP
    """What to do if the part is missing or broken: a command, or a sentence."""
    deadline_s: float = 180.0
    """Time limit for checking the part (importing and using it), in seconds."""


def _extra(name: str, title: str, module: str, distribution: str, images: bool = True) -> Part:
    return Part(name, title, module, distribution, extra=True, in_images=images, required=False)


def _asked(name: str, title: str, module: str, distribution: str) -> Part:
    """An optional part that `make setup` installs only if EXTRAS names it."""
    extra = _extra(name, title, module, distribution, images=False)
    return replace(extra, install=f"{_SETUP} EXTRAS={name}")


PARTS = (
    Part("torch", "torch", "torch", "torch"),
    Part("torchvision", "torchvision", "torchvision", "torchvision"),
    Part("ray", "ray", "ray", "ray"),
    Part("gloo", "gloo all-reduce", "torch.distributed", "torch"),
    _extra("horovod", "horovod all-reduce", "horovod.torch", "horovod"),
    _extra("deepspeed", "deepspeed ZeRO step", "deepspeed", "deepspeed"),
    _extra("dali", "DALI pipeline", "nvidia.dali", "nvidia-dali-cuda120"),
    _extra("timm", "timm model", "timm", "timm"),
    _extra(
        "schedulefree", "schedule-free AdamW step", "schedulefree", "schedulefree", images=False
    ),
    _extra("postgres", "", "psycopg", "psycopg", images=False),
    _asked("fabric", "fabric step", "lightning_fabric", "lightning-fabric"),
    _asked("accelerate", "accelerate step", "accelerate", "accelerate"),
    _asked("tensorflow", "TensorFlow gradient", "tensorflow", "tensorflow"),
    _asked("jax", "JAX gradient", "jax", "jax"),
    Part("mlflow", "mlflow", "mlflow", "mlflow"),
    _asked("tensorboard", "", "tensorboard", "tensorboard"),
    _asked("wandb", "", "wandb", "wandb"),
    Part(
        "gpu",
        "GPU",
        required=False,
        install="install NVIDIA's driver (docs/how-to/images.md states the oldest version that "
        "works), or use the CPU",
    ),
)
EXTRAS = tuple(part for part in PARTS if part.extra)
_BY_NAME = {part.name: part for part in PARTS}


def part(name: str) -> Part:
    """The part with this name. Raises KeyError for a name that is not in the table."""
    return _BY_NAME[name]


@cache
def installed(name: str) -> bool:
    """Whether a part is installed; True for an empty name. The module is only looked up, because an
    import can take seconds and gigabytes of memory."""
    if not name:
        return True
    try:
        return find_spec(part(name).module) is not None
    except ModuleNotFoundError:
        return False


def owner(module: str) -> Part | None:
    """The optional part to which a module belongs; None for other modules."""
    top = module.partition(".")[0]
    return next((each for each in EXTRAS if each.module.partition(".")[0] == top), None)
