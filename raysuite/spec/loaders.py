"""How samples reach a worker: one block of options per loader."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from raysuite.spec.base import Options, expand_shorthand

Decode = Literal["exact", "scaled"]
"""`exact`: the pixels that Pillow gives; `scaled`: from large JPEGs others, in less time."""


class NativeOptions(Options):
    """Threads of the worker, or processes of PyTorch's DataLoader, that decode on the CPU."""

    name: Literal["native"] = "native"
    threads: int = Field(default=0, ge=0)
    """Threads per worker that load ahead; the decoder leaves Python's lock alone."""
    processes: int = Field(default=0, ge=0)
    """Loading processes per worker, in place of threads. With neither, the worker itself loads."""
    prefetch: int = Field(default=2, ge=1)
    """Batches that each loading process, or all threads together, hold ready."""
    decode: Decode = "exact"
    """`exact`: the same pixels as every other loader; `scaled`: an image that is shown at half its
    size or less is decoded at a half to an eighth of it, and its pixels differ."""
    transport: Literal["auto", "uint8", "float32"] = "auto"
    """What is loaded ahead: pixels, which the device normalises, or normalised values; `auto`:
    float32 from threads where the worker has no GPU, else uint8."""

    @model_validator(mode="after")
    def _one_kind(self) -> NativeOptions:
        if self.threads and self.processes:
            raise ValueError(
                f"threads is {self.threads} and processes is {self.processes}; valid is one of "
                "them; leave the other out"
            )
        return self


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
