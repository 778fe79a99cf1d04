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


LoaderOptions = Annotated[
    NativeOptions | DaliOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]
