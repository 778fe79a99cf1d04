"""How samples reach a worker: one block of options per loader."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from raysuite.spec.base import Options, expand_shorthand


class NativeOptions(Options):
    """PyTorch's DataLoader."""

    name: Literal["native"] = "native"
    processes: int = Field(default=0, ge=0)
    """Loading processes per worker; 0 loads in the worker itself."""
    prefetch: int = Field(default=2, ge=1)
    """Batches that each loading process holds ready."""


class DaliOptions(Options):
    """NVIDIA DALI."""

    name: Literal["dali"] = "dali"
    device: Literal["cpu", "gpu"] = "cpu"
    """Where images are decoded and normalised."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of the pipeline per worker."""
    prefetch: int = Field(default=2, ge=1)
    """Batches that the pipeline holds ready."""


class MemoryOptions(Options):
    """The whole set decoded once, in memory that all workers of a node share: for small sets."""

    name: Literal["memory"] = "memory"
    threads: int = Field(default=1, ge=1)
    """Threads per worker that cut and resize batches; at the start all cores decode the set."""
    prefetch: int = Field(default=2, ge=1)
    """Batches that each worker holds ready."""


class SyntheticOptions(Options):
    """Random tensors made once on the device: the limit without any loading. Accuracies and losses
    mean nothing."""

    name: Literal["synthetic"] = "synthetic"


class RayDataOptions(Options):
    """Ray Data: images are decoded in Ray tasks on the worker's node, and streamed to it."""

    name: Literal["ray_data"] = "ray_data"
    tasks: int = Field(default=1, ge=1)
    """Ray tasks per worker that decode at the same time, each on a core."""
    images_per_task: int = Field(default=128, ge=1)
    """A task decodes whole batches, until it has so many images: each task costs Ray some 10 ms."""
    prefetch: int = Field(default=2, ge=1)
    """Batches that each worker holds ready."""


LoaderOptions = Annotated[
    NativeOptions | DaliOptions | MemoryOptions | SyntheticOptions | RayDataOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]
